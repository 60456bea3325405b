"""How many bytes a model takes: measured once per content, in a fresh process, after its warm-up.

A process that serves several models cannot tell what one of them takes, and it must know before it loads one. So a
child loads it, computes once, and reads what it takes itself (``python -m relight.runtime.measuring``); the figure is
kept beside the node cache. A model that brings its process down is found out there, and not where others are served.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import subprocess
import sys
import threading
from base64 import b64decode, b64encode
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from relight.backends import gpus
from relight.base import logs
from relight.base.errors import LoadFailed, RelightError
from relight.base.ids import new_id
from relight.runtime import memory, warming
from relight.runtime.context import FunctionSettings
from relight.runtime.loading import Fetch, model_of
from relight.store.cache import Fetched
from relight.store.locks import Lock
from relight.store.modelfiles import ModelFiles

log = logging.getLogger("relight.measuring")

FORMAT = 1
TIMEOUT = 600.0
"""Seconds for a load in the child: a large model from a slow disk, and nothing that waits for ever."""
_LAST = 2000
"""Bytes of the child's output that are told when it fails."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes of a loaded model. ``gpu`` is None where there is no GPU to ask."""

    host: int
    gpu: int | None = None

    @property
    def total(self) -> int:
        return self.host + (self.gpu or 0)


class Measurements:
    """Figures of this node, in a folder of files named by the models' digests."""

    def __init__(self, cache: Path, settings: FunctionSettings) -> None:
        self._folder = cache / "v1" / "measured"
        self._settings = settings
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def known(self, digest: str) -> Measured | None:
        """The figure that was kept; None where there is none that can be read."""
        try:
            value = json.loads((self._folder / f"{digest}.json").read_bytes())
            return Measured(int(value["host"]), value["gpu"]) if value["format"] == FORMAT else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def of(self, fetch: Fetch) -> Measured:
        """The figure of a model; measured now if it never was. LoadFailed says why it could not be loaded."""
        known = self.known(fetch.digest)
        if known is not None:
            return known
        made = _made(fetch)
        measured = self._measure(fetch)
        if _made(fetch) != made:
            # The first load on a node leaves what later ones use, such as an optimised graph: they count.
            measured = self._measure(fetch)
        log.info("model.measured model=%s host=%d gpu=%s", fetch.key, measured.host, measured.gpu)
        part = self._folder / f".{new_id()}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps({"format": FORMAT, "model": fetch.key} | asdict(measured)))
            os.replace(part, self._folder / f"{fetch.digest}.json")
        except OSError as error:
            log.warning("model.not_kept model=%s error=%s: it is measured again at the next start", fetch.key, error)
            with contextlib.suppress(OSError):
                part.unlink()
        return measured

    def stop(self) -> None:
        """End a measurement that is going on, and begin none any more."""
        with self._lock:
            self._stopped = True
            if self._child is not None:
                self._child.kill()

    def _measure(self, fetch: Fetch) -> Measured:
        command = [sys.executable, "-P", "-m", "relight.runtime.measuring"]
        with self._lock:
            if self._stopped:
                raise LoadFailed(f"model {fetch.key} was not measured: this process is stopping")
            child = self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "RELIGHT_LOG_LEVEL": "warning"},
                start_new_session=True,
            )
        try:
            output, errors = child.communicate(self._asked(fetch), TIMEOUT)
        except subprocess.TimeoutExpired:
            raise LoadFailed(f"model {fetch.key} was not loaded within {TIMEOUT:.0f} s, to be measured") from None
        finally:
            with self._lock:
                self._child = None
            child.kill()
            child.communicate()
        try:
            told = json.loads(output.splitlines()[-1])
        except (ValueError, IndexError):
            told = {}
        if child.returncode == 0 and "host" in told:
            return Measured(told["host"], told["gpu"])
        log.error("model.not_measured model=%s output=%s", fetch.key, errors[-_LAST:].decode(errors="replace"))
        ended = f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"
        reason = told.get("error") or f"the process that loaded it to be measured ended by {ended}"
        raise LoadFailed(f"model {fetch.key} cannot be loaded: {reason}")

    def _asked(self, fetch: Fetch) -> bytes:
        files = fetch.files
        return json.dumps(
            {
                "name": fetch.name,
                "version": fetch.version,
                "path": str(fetch.fetched.path),
                "digest": fetch.fetched.digest,
                "made": str(fetch.fetched.made),
                "config": None if files.config is None else b64encode(files.config).decode(),
                "warmup": {name: b64encode(data).decode() for name, data in files.warmup.items()},
                "default_max_batch_size": self._settings.default_max_batch_size,
            }
        ).encode()


def _made(fetch: Fetch) -> set[str]:
    """What was made on this node of a version's files: its graphs."""
    return {path.name for path in fetch.fetched.made.glob("graphs/*")}


def main() -> int:
    """The child: load what standard input describes, and tell its bytes as the last line of standard output."""
    memory.die_with_parent()
    logs.configure(os.environ.get("RELIGHT_LOG_LEVEL") or "warning")
    asked = json.load(sys.stdin)
    try:
        told: dict[str, Any] = asdict(_taken(asked))
    except RelightError as error:
        told = {"error": error.message}
    except Exception as error:
        log.exception("model.not_measured")
        told = {"error": f"{type(error).__name__}; the log says where"}
    print(json.dumps(told), flush=True)  # noqa: T201
    # Libraries' threads may be at work still; the figure is out.
    os._exit(0 if "host" in told else 1)


def _taken(asked: dict[str, Any]) -> Measured:
    config = None if asked["config"] is None else b64decode(asked["config"])
    files = ModelFiles(config, {name: b64decode(data) for name, data in asked["warmup"].items()})
    made = Path(asked["made"])
    fetched = Fetched(Path(asked["path"]), made, asked["version"], asked["digest"], True, True, Lock(-1))
    settings = FunctionSettings(default_max_batch_size=asked["default_max_batch_size"])
    model = model_of(Fetch(asked["name"], asked["version"], fetched, files), settings)
    with contextlib.suppress(ImportError):  # What is missing is told by the load.
        importlib.import_module(model.kind().library)
    before, gpu_before = memory.resident(os.getpid()), gpus.used()
    model.load()
    model.warmup()
    model.run(warming.least(model.config))
    model.session.settle()
    memory.trim()
    host, gpu = memory.resident(os.getpid()) - before, gpus.used()
    return Measured(max(0, host), None if gpu is None or gpu_before is None else max(0, gpu - gpu_before))


if __name__ == "__main__":
    sys.exit(main())
