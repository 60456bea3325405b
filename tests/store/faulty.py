"""Storage that does as it is told."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from relight.store.objects import Listing, Objects


class Faulty:
    """Storage that can be told to fail, and that counts what is asked of it."""

    def __init__(self, inner: Objects) -> None:
        self.inner = inner
        self.uri = inner.uri
        self.remote = inner.remote
        self.calls: list[str] = []
        self.before: Callable[[str, str], None] = lambda verb, key: None
        """Called with the verb and the key; what it raises is what storage does."""
        self.limit: int | None = None
        """Bytes that fit; more is a full disk."""

    def _called(self, verb: str, key: str) -> None:
        self.calls.append(f"{verb} {key}")
        self.before(verb, key)

    def list(self, folder: str) -> Listing:
        self._called("list", folder)
        return self.inner.list(folder)

    def place(self, key: str) -> Path | None:
        return self.inner.place(key)

    def size(self, key: str) -> int:
        self._called("size", key)
        return self.inner.size(key)

    def read(self, key: str) -> bytes:
        self._called("read", key)
        return self.inner.read(key)

    def read_into(self, key: str, offset: int, buffer: memoryview, tag: str | None = None) -> int:
        self._called("read", key)
        return self.inner.read_into(key, offset, buffer, tag)

    def put(
        self,
        key: str,
        chunks: Iterable[bytes],
        *,
        create: bool = False,
        size: int | None = None,
        resume: bool = False,
    ) -> None:
        self._called("put", key)
        self.inner.put(key, self._bounded(chunks), create=create, size=size, resume=resume)

    def holds(self, key: str, chunks: Iterable[bytes], size: int) -> bool:
        self._called("holds", key)
        return self.inner.holds(key, chunks, size)

    def _bounded(self, chunks: Iterable[bytes]) -> Iterable[bytes]:
        for chunk in chunks:
            if self.limit is not None:
                self.limit -= len(chunk)
                if self.limit < 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            yield chunk

    def delete(self, key: str) -> None:
        self._called("delete", key)
        self.inner.delete(key)

    def clean(self, older_than: float) -> int:
        return self.inner.clean(older_than)

    # What a test does behind the back of the repository.

    def all(self, folder: str = "") -> dict[str, bytes]:
        """Everything that is stored."""
        found = self.inner.list(folder)
        prefix = f"{folder}/" if folder else ""
        stored = {prefix + entry.name: self.inner.read(prefix + entry.name) for entry in found.files}
        for below in found.folders:
            stored |= self.all(prefix + below)
        return stored

    def edit(self, key: str, change: Callable[[bytes], bytes | None]) -> None:
        """Change an object; None takes it away."""
        data = change(self.inner.read(key))
        if data is None:
            self.inner.delete(key)
        else:
            self.inner.put(key, [data])
