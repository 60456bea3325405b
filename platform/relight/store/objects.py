"""The seam to object storage: five verbs on keys, one driver per kind of storage.

A key is a relative path with ``/`` between its parts. Folders do not exist by themselves: a folder is what keys have in
front of a ``/``, so ``bert`` never means ``bert-large`` too. Drivers raise ``FileNotFoundError`` for a key that is not
there, ``Conflict`` for one that must not be there yet, ``NoSpace`` where there is no room, and ``StoreError`` for all
else that storage may answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from relight.base.errors import BadInput


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of a folder. ``tag`` changes when its content does (ETag, or size and time of change)."""

    name: str
    size: int
    tag: str


class Listing(NamedTuple):
    """One level of a folder, sorted by name. A folder that is not there is empty."""

    files: tuple[Entry, ...]
    folders: tuple[str, ...]


class Objects(Protocol):
    """Storage, as the model repository sees it. Safe to call from several threads and processes."""

    uri: str

    def list(self, folder: str) -> Listing:
        """What lies directly in a folder; ``""`` is the root."""

    def size(self, key: str) -> int:
        """Bytes of an object."""

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """A range of an object; shorter than ``length`` where the object ends before."""

    def put(self, key: str, chunks: Iterable[bytes], *, create: bool = False) -> None:
        """Write a whole object or nothing. With ``create``, Conflict if it exists (one of two writers wins)."""

    def delete(self, key: str) -> None:
        """Remove an object; it is no error if there is none."""


def open_objects(uri: str) -> Objects:
    """The driver for a URI."""
    parts = urlsplit(uri)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        from relight.store.files import Files

        return Files(unquote(parts.path))
    raise BadInput(f"{uri!r} cannot be opened as a model repository: supported are folders, file:///absolute/path")


def clean_key(key: str) -> str:
    """The key itself, if it stays inside its folder; BadInput if it would not."""
    if not key or "\0" in key or "\\" in key or any(part in ("", ".", "..") for part in key.split("/")):
        raise BadInput(f"{key!r} is no file name inside a model's folder")
    return key
