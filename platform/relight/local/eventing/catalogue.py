"""Validation at the broker: events of a known type must be what the catalogue's JSON Schema says; others pass.

Opt-in per Broker, by ``relight.dev/validate: "true"``. The schemas are files ``TYPE.json`` in one folder: that of the
annotation ``relight.dev/schemas``, or ``RELIGHT_SCHEMAS``. A file that changes is read again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from relight.base.errors import BadInput, Problem
from relight.local.eventing.naming import Hub
from relight.wire.cloudevents import Event

log = logging.getLogger("relight.eventing")

VALIDATE = "relight.dev/validate"
SCHEMAS = "relight.dev/schemas"
FRESH = 2.0
"""Seconds between two looks at whether files have changed."""
MOST_PROBLEMS = 5

_Signature = tuple[tuple[str, int, int], ...]


class Catalogue:
    """The schemas of one folder."""

    def __init__(self, folder: Path, now: Callable[[], float]) -> None:
        self.folder = folder
        self._now = now
        self._checked = float("-inf")
        self._signature: _Signature | None = None
        self._validators: dict[str, Any] = {}

    def types(self) -> list[str]:
        """The types that are known."""
        self._refresh()
        return sorted(self._validators)

    def check(self, event: Event) -> None:
        """BadInput names every part of the data that is not as its type's schema says (the first few of them)."""
        self._refresh()
        validator = self._validators.get(event.type)
        if validator is None:
            return
        try:
            data = event.json()
        except BadInput as error:
            raise BadInput(f"data: JSON was expected of an event of type {event.type}", param="data") from error
        problems = []
        for found in validator.iter_errors(data):
            problems.append(Problem(_path(found.absolute_path), found.message[:200]))
            if len(problems) == MOST_PROBLEMS:
                break
        if problems:
            raise BadInput.of(problems)

    def _refresh(self) -> None:
        """Read what has changed. By name, size and time of the files: names never come from an event."""
        now = self._now()
        if 0 <= now - self._checked < FRESH:
            return
        self._checked = now
        try:
            files = sorted(self.folder.glob("*.json"))
            signature = tuple((path.name, stat.st_mtime_ns, stat.st_size) for path in files for stat in (path.stat(),))
        except OSError as error:
            log.error("schemas.unreadable folder=%s error=%s: what was read before goes on", self.folder, error)
            return
        if signature == self._signature:
            return
        self._signature = signature
        self._validators = {}
        for path in files:
            try:
                self._validators[path.name.removesuffix(".json")] = _validator(msgspec.json.decode(path.read_bytes()))
            except Exception as error:
                # One broken schema must not stop the events of others.
                log.error("schema.unusable path=%s error=%s: events of this type pass unchecked", path, error)


def _validator(schema: Any) -> Any:
    """Checks against one schema. Raises where it is none, or refers to what is not in it."""
    from jsonschema import validators
    from referencing import Registry

    kind = validators.validator_for(schema)
    kind.check_schema(schema)
    # An empty registry: a schema never makes the broker fetch something.
    registry: Any = Registry()
    validator = kind(schema, registry=registry)
    list(validator.iter_errors({}))
    return validator


def _path(steps: Any) -> str:
    return "data" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)


class Validation:
    """Which hubs validate, and by what."""

    def __init__(self, schemas: Path | None, now: Callable[[], float]) -> None:
        self._default = schemas
        self._now = now
        self._catalogues: dict[Path, Catalogue] = {}
        self._by_hub: dict[Hub, Catalogue] = {}

    def check(self, hub: Hub, event: Event) -> None:
        catalogue = self._by_hub.get(hub)
        if catalogue is not None:
            catalogue.check(event)

    def set(self, hub: Hub, annotations: Mapping[str, str]) -> str | None:
        """Validate as a Broker's annotations say; why that is not possible, or None."""
        self._by_hub.pop(hub, None)
        wanted = annotations.get(VALIDATE, "false")
        if wanted not in ("true", "false"):
            return f'{VALIDATE}: "true" or "false" was expected, got {wanted!r}'
        if wanted == "false":
            return None
        given = annotations.get(SCHEMAS)
        folder = Path(given) if given else self._default
        if folder is None:
            return f"no folder of schemas is known: set {SCHEMAS}, or RELIGHT_SCHEMAS"
        if not folder.is_absolute() or not folder.is_dir():
            return f"{folder} is not the absolute path of a folder of schemas"
        self._by_hub[hub] = self._catalogues.setdefault(folder, Catalogue(folder, self._now))
        return None

    def forget(self, hub: Hub) -> None:
        self._by_hub.pop(hub, None)
