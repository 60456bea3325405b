"""The driver for folders: whole objects or none, and no folder that holds nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from relight.base.errors import BadInput, Conflict, StoreError
from relight.store.files import Files


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "objects")


def test_what_is_put_is_read_in_ranges(files: Files) -> None:
    files.put("a/b/c", [b"0123", b"", b"456"])
    assert files.size("a/b/c") == 7
    assert files.read("a/b/c") == b"0123456"
    assert files.read("a/b/c", 2, 3) == b"234"
    assert files.read("a/b/c", 5, 100) == b"56"
    assert files.read("a/b/c", 9, 1) == b""


def test_a_listing_is_one_level(files: Files) -> None:
    for key in ("m/1/x", "m/1/.relight/y", "m/z.part", "m-large/1/x"):
        files.put(key, [b"1"])
    listing = files.list("m")
    assert ([entry.name for entry in listing.files], listing.folders) == (["z.part"], ("1",))
    assert files.list("m/1").folders == (".relight",)
    assert files.list("").folders == ("m", "m-large")
    assert files.list("no/where") == ((), ())
    assert files.list("m/1/x") == ((), ())


def test_a_tag_changes_with_the_content(files: Files) -> None:
    tags = set()
    for content in (b"one", b"two", b"three"):
        files.put("a/b", [content])
        tags.add(files.list("a").files[0].tag)
    assert len(tags) == 3


def test_only_one_creates(files: Files) -> None:
    start = threading.Barrier(8)

    def create(number: int) -> bool:
        start.wait(10)
        try:
            files.put("a/claim", [bytes([number])], create=True)
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(create, range(8))) == 1
    with pytest.raises(Conflict, match="a/claim exists already"):
        files.put("a/claim", [b""], create=True)


def test_a_writer_that_fails_leaves_the_old_object_and_nothing_else(files: Files) -> None:
    files.put("a/b", [b"old"])

    def broken() -> Iterator[bytes]:
        yield b"new"
        raise OSError(5, "Input/output error")

    with pytest.raises(StoreError, match="a/b: Input/output error"):
        files.put("a/b", broken())
    assert files.read("a/b") == b"old"
    assert [path for path in files.root.rglob("*") if path.is_file()] == [files.root / "a" / "b"]


def test_deleting_leaves_no_empty_folder(files: Files) -> None:
    files.put("a/b/c", [b"1"])
    files.put("a/d", [b"1"])
    files.delete("a/b/c")
    files.delete("a/b/c")
    assert sorted(path.name for path in files.root.rglob("*")) == ["a", "d"]
    files.delete("a/d")
    assert list(files.root.iterdir()) == []


def test_writing_and_deleting_side_by_side(files: Files) -> None:
    def churn(number: int) -> None:
        for _ in range(30):
            files.put(f"shared/{number}/x", [b"1"])
            files.delete(f"shared/{number}/x")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(churn, range(4)))
    assert not (files.root / "shared").exists()


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../up", "a/../b", "a//b", "a/", "./a", "a\0b", "a\\b"])
@pytest.mark.parametrize("verb", ["read", "size", "delete", "put"])
def test_no_key_leaves_the_folder(files: Files, key: str, verb: str) -> None:
    calls: dict[str, Callable[[], object]] = {
        "read": lambda: files.read(key),
        "size": lambda: files.size(key),
        "delete": lambda: files.delete(key),
        "put": lambda: files.put(key, []),
    }
    with pytest.raises(BadInput, match="no file name inside a model's folder"):
        calls[verb]()


@pytest.mark.parametrize("key", ["a/b", "a/file/below"])
def test_what_is_not_there(files: Files, key: str) -> None:
    files.put("a/file", [b"1"])
    for call in (files.read, files.size):
        with pytest.raises(FileNotFoundError, match=key):
            call(key)
