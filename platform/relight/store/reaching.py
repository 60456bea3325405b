"""What a function reaches from where it runs: ``python -m relight.store.reaching`` looks, and says it in lines of JSON.

`relight doctor --inside` runs it in a pod that has a function's image, settings, credentials and network policy: only
there is it known whether object storage answers and lets that account read. Nothing is written but an empty file in the
cache's folder, which is removed.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from relight.base.errors import BadInput, RelightError
from relight.base.units import format_bytes
from relight.store.keys import Keys
from relight.store.repository import Repository

_SHOWN = 5
"""Models that are named; of more only the number is told."""


@dataclass(frozen=True)
class Reach:
    """One thing that was reached for."""

    name: str
    ok: bool
    finding: str


def look(environ: Mapping[str, str]) -> list[Reach]:
    """The model repository and the node cache that an environment names. Nothing here raises."""
    return [_tried("repository", _repository, environ), _tried("cache", _cache, environ)]


def _tried(name: str, what: Callable[[Mapping[str, str]], str], environ: Mapping[str, str]) -> Reach:
    try:
        return Reach(name, True, what(environ))
    except RelightError as error:
        return Reach(name, False, error.message)
    except OSError as error:
        return Reach(name, False, str(error))


def _repository(environ: Mapping[str, str]) -> str:
    uri = environ.get("RELIGHT_REPOSITORY")
    if not uri:
        raise BadInput("RELIGHT_REPOSITORY is not set: no model repository is named")
    repository = Repository.open(uri, Keys.from_environ(environ))
    models = repository.folders()
    named = f": {', '.join(models)}" if 0 < len(models) <= _SHOWN else ""
    found = f"{repository.uri} has {len(models)} {'model' if len(models) == 1 else 'models'}{named}"
    model = environ.get("RELIGHT_MODEL") or ""
    if not model or model == "*" or "," in model:
        return found
    # Listing is one permission and reading another: the manifest is read.
    version = repository.resolve(model, None)
    return f"{found}; {model} version {version.number} can be read, {format_bytes(version.manifest.size)}"


def _cache(environ: Mapping[str, str]) -> str:
    path = Path(environ.get("RELIGHT_CACHE") or tempfile.gettempdir())
    path.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path, prefix=".reaching-"):
        return f"{path} can be written, {format_bytes(shutil.disk_usage(path).free)} free"


def main() -> int:
    """Print what was found, a line of JSON each; 1 where something was not reached."""
    found = look(os.environ)
    for one in found:
        sys.stdout.write(json.dumps(asdict(one)) + "\n")
    return 0 if all(one.ok for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
