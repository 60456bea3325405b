"""The seam to object storage: a few verbs on keys, one driver per kind of storage.

A key is a relative path with ``/`` between its parts. Folders do not exist by themselves: a folder is what keys have in
front of a ``/``, so ``bert`` never means ``bert-large`` too. Drivers raise ``FileNotFoundError`` for a key that is not
there, ``Conflict`` for one that must not be there yet or is not the one it was, ``NoSpace`` where there is no room,
``Unreachable`` where trying again later may help, and ``StoreError`` for all else that storage may answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
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
    remote: bool
    """Whether a call goes over a network, and is worth avoiding."""

    def list(self, folder: str) -> Listing:
        """What lies directly in a folder; ``""`` is the root."""

    def size(self, key: str) -> int:
        """Bytes of an object."""

    def read(self, key: str) -> bytes:
        """A whole object, for small ones."""

    def read_into(self, key: str, offset: int, buffer: memoryview, tag: str | None = None) -> int:
        """Fill ``buffer`` from a place in an object and return how many bytes there were: fewer where it ends.

        With ``tag``, Conflict if the object is no longer the one that was listed so.
        """

    def put(
        self,
        key: str,
        chunks: Iterable[bytes],
        *,
        create: bool = False,
        size: int | None = None,
        resume: bool = False,
    ) -> None:
        """Write a whole object or nothing. With ``create``, Conflict if it exists (one of two writers wins).

        ``size``: how many bytes will come, as far as the caller knows; storage cuts parts by it. With ``resume``, parts
        that an earlier call left whose way was cut are not sent again where they hold the same bytes.
        """

    def holds(self, key: str, chunks: Iterable[bytes], size: int) -> bool:
        """Whether an object consists of these bytes. False also where that cannot be told without reading it all."""

    def place(self, key: str) -> Path | None:
        """The file that an object is, where storage is a folder of this machine."""

    def delete(self, key: str) -> None:
        """Remove an object; it is no error if there is none."""

    def clean(self, older_than: float) -> int:
        """Remove what interrupted writes left, ``older_than`` seconds ago or more; returns how many there were."""


def open_objects(uri: str) -> Objects:
    """The driver for a URI or an absolute path. Nothing is read yet, and no driver's library is imported."""
    parts = urlsplit(uri)
    if uri.startswith("/"):
        from relight.store.files import Files

        return Files(uri)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        from relight.store.files import Files

        return Files(unquote(parts.path))
    if parts.scheme == "s3" and parts.netloc and not (parts.query or parts.fragment):
        from relight.store.s3 import S3

        return S3(parts.netloc, parts.path.strip("/"))
    raise BadInput(
        f"{uri!r} cannot be opened as a model repository: supported are /absolute/path, file:///absolute/path, and "
        "s3://bucket/prefix"
    )


def clean_key(key: str) -> str:
    """The key itself, if it stays inside its folder; BadInput if it would not."""
    if not key or "\0" in key or "\\" in key or any(part in ("", ".", "..") for part in key.split("/")):
        raise BadInput(f"{key!r} is no file name inside a model's folder")
    return key
