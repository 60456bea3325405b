"""A repository and a node cache in temporary folders, weights to push, and storage that does as it is told."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from relight.store.cache import NodeCache
from relight.store.files import Files
from relight.store.manifest import CHUNK
from relight.store.objects import Listing
from relight.store.repository import Repository


class Faulty:
    """Storage of this machine that can be told to fail, and that counts what is asked of it."""

    def __init__(self, inner: Files) -> None:
        self.inner = inner
        self.uri = inner.uri
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

    def size(self, key: str) -> int:
        self._called("size", key)
        return self.inner.size(key)

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        self._called("read", key)
        return self.inner.read(key, offset, length)

    def put(self, key: str, chunks: Iterable[bytes], *, create: bool = False) -> None:
        self._called("put", key)
        self.inner.put(key, self._bounded(chunks), create=create)

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


@pytest.fixture
def storage(tmp_path: Path) -> Faulty:
    return Faulty(Files(tmp_path / "repository"))


@pytest.fixture
def repository(storage: Faulty) -> Repository:
    return Repository(storage)


@pytest.fixture
def cache(tmp_path: Path) -> NodeCache:
    return NodeCache(tmp_path / "cache")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A model of three files: of two chunks and a bit, of a few bytes, and empty."""
    folder = tmp_path / "weights"
    (folder / "assets").mkdir(parents=True)
    (folder / "model.onnx").write_bytes(os.urandom(1024) * (2 * CHUNK // 1024) + b"the end")
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    (folder / "assets" / "empty.txt").touch()
    return folder


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """``make(size)``: a one-file model of random bytes."""

    def make(size: int, fill: bytes | None = None) -> Path:
        folder = tmp_path / f"make-{os.urandom(4).hex()}"
        folder.mkdir()
        (folder / "model.onnx").write_bytes(os.urandom(size) if fill is None else fill * size)
        return folder

    return make


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def read_all() -> Callable[[Path], dict[str, bytes]]:
    return contents
