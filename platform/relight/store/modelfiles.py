"""What belongs to a model and not to one of its versions: ``config.pbtxt`` and the files in the folder ``warmup``.

They may change, where versions do not. A node keeps the last that it has seen, in one file per model, so that a start
that asks nothing of the repository has them too.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relight.base.errors import CorruptWeights, MissingWeights, StoreError
from relight.base.ids import new_id
from relight.store.objects import Objects
from relight.store.repository import Repository, check_name

CONFIG = "config.pbtxt"
WARMUP = "warmup"
LIMIT = 64 * 2**20
"""Bytes of one file: a configuration or an input to warm up with, not weights."""
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files, in memory. ``tag`` changes when one of them does."""

    config: bytes | None = None
    warmup: Mapping[str, bytes] = field(default_factory=dict)
    tag: str = ""


def fetch(repository: Repository, name: str, cache: Path | None = None, *, fresh: bool = True) -> ModelFiles:
    """The files of a model. ``fresh`` False: those that the node has, if it has any. MissingWeights, StoreError."""
    kept = None if cache is None else _place(cache, repository, name)
    known = _read(kept) if kept is not None else None
    if known is not None and not fresh:
        return known
    objects = repository.objects
    listing = objects.list(check_name(name))
    found = {entry.name: (entry.size, entry.tag) for entry in listing.files if entry.name == CONFIG}
    if WARMUP in listing.folders:
        found |= {f"{WARMUP}/{entry.name}": (entry.size, entry.tag) for entry in objects.list(f"{name}/{WARMUP}").files}
    tag = hashlib.sha256(json.dumps(sorted(found.items())).encode()).hexdigest()[:16]
    if known is not None and known.tag == tag:
        return known
    for path, (size, _) in found.items():
        if size > LIMIT:
            raise CorruptWeights(f"{repository.uri}/{name}/{path} is {size} bytes; more than {LIMIT} are not read")
    warmup = {path.partition("/")[2]: path for path in found if path != CONFIG}
    files = ModelFiles(
        _object(objects, f"{name}/{CONFIG}") if CONFIG in found else None,
        {file: _object(objects, f"{name}/{path}") for file, path in warmup.items()},
        tag,
    )
    if kept is not None:
        _write(kept, files)
    return files


def _object(objects: Objects, key: str) -> bytes:
    try:
        return objects.read(key)
    except FileNotFoundError:
        raise MissingWeights(f"{objects.uri}/{key} was removed while it was read") from None


def _place(cache: Path, repository: Repository, name: str) -> Path:
    return cache / "v1" / "model-files" / hashlib.sha256(repository.uri.encode()).hexdigest()[:16] / f"{name}.json"


def _read(path: Path) -> ModelFiles | None:
    """What was kept; None where nothing was, or nothing that can be read."""
    try:
        value: dict[str, Any] = json.loads(path.read_bytes())
        if value["format"] != _FORMAT:
            return None
        config = None if value["config"] is None else base64.b64decode(value["config"])
        warmup = {name: base64.b64decode(data) for name, data in value["warmup"].items()}
        return ModelFiles(config, warmup, str(value["tag"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(path: Path, files: ModelFiles) -> None:
    config = None if files.config is None else base64.b64encode(files.config).decode()
    warmup = {name: base64.b64encode(data).decode() for name, data in files.warmup.items()}
    value = {"format": _FORMAT, "tag": files.tag, "config": config, "warmup": warmup}
    part = path.with_name(f".{path.name}.{new_id()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(value))
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise StoreError(f"cannot keep {path}: {error.strerror}") from error
