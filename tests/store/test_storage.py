"""The seam to storage, in a folder and on S3: whole objects or none, and a folder is a folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from relight.base.errors import BadInput, Conflict, StoreError
from relight.store.manifest import CHUNK
from relight.store.objects import Objects


def test_what_is_put_is_read_in_ranges(objects: Objects) -> None:
    objects.put("a/b/c", [b"0123", b"", b"456"])
    assert objects.size("a/b/c") == 7
    assert objects.read("a/b/c") == b"0123456"
    assert ranged(objects, "a/b/c", 2, 3) == b"234"
    assert ranged(objects, "a/b/c", 5, 100) == b"56"
    assert ranged(objects, "a/b/c", 9, 1) == b""


def ranged(objects: Objects, key: str, offset: int, length: int, tag: str | None = None) -> bytes:
    buffer = bytearray(length)
    return bytes(buffer[: objects.read_into(key, offset, memoryview(buffer), tag)])


def test_a_large_object_is_whole(objects: Objects) -> None:
    chunks = [bytes([number]) * CHUNK for number in range(3)] + [b"the end"]
    objects.put("a/large", chunks, size=3 * CHUNK + 7)
    assert objects.read("a/large") == b"".join(chunks)
    with pytest.raises(Conflict, match="a/large exists already"):
        objects.put("a/large", [b"2" * CHUNK, b"3"], create=True)


def test_a_read_that_names_its_object_gets_no_other(objects: Objects) -> None:
    objects.put("a/b", [b"one"])
    tag = objects.list("a").files[0].tag
    assert ranged(objects, "a/b", 1, 2, tag) == b"ne"
    objects.put("a/b", [b"two"])
    with pytest.raises(Conflict, match=r"a/b is not the .* any more that was listed there"):
        ranged(objects, "a/b", 1, 2, tag)


def test_a_listing_is_one_level(objects: Objects) -> None:
    for key in ("m/1/x", "m/1/.relight/y", "m/z.part", "m-large/1/x"):
        objects.put(key, [b"1"])
    listing = objects.list("m")
    assert ([entry.name for entry in listing.files], listing.folders) == (["z.part"], ("1",))
    assert objects.list("m/1").folders == (".relight",)
    assert objects.list("").folders == ("m", "m-large")
    assert objects.list("no/where") == ((), ())
    assert objects.list("m/1/x") == ((), ())


def test_a_tag_changes_with_the_content(objects: Objects) -> None:
    tags = set()
    for content in (b"one", b"two", b"three"):
        objects.put("a/b", [content])
        tags.add(objects.list("a").files[0].tag)
    assert len(tags) == 3


def test_only_one_creates(objects: Objects) -> None:
    start = threading.Barrier(8)

    def create(number: int) -> bool:
        start.wait(10)
        try:
            objects.put("a/claim", [bytes([number])], create=True)
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(create, range(8))) == 1
    with pytest.raises(Conflict, match="a/claim exists already"):
        objects.put("a/claim", [b""], create=True)


def test_a_writer_that_fails_leaves_the_old_object_and_nothing_else(objects: Objects) -> None:
    objects.put("a/b", [b"old"])

    def broken() -> Iterator[bytes]:
        yield b"n" * CHUNK
        yield b"e" * CHUNK
        raise OSError(5, "Input/output error")

    with pytest.raises(StoreError, match=r"a/b: .*Input/output error"):
        objects.put("a/b", broken())
    assert objects.read("a/b") == b"old"
    assert objects.clean(0.0) == 0
    assert [entry.name for entry in objects.list("a").files] == ["b"]
    assert objects.list("a").folders == ()


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../up", "a/../b", "a//b", "a/", "./a", "a\0b", "a\\b"])
@pytest.mark.parametrize("verb", ["read", "size", "delete", "put"])
def test_no_key_leaves_the_folder(objects: Objects, key: str, verb: str) -> None:
    calls: dict[str, Callable[[], object]] = {
        "read": lambda: objects.read(key),
        "size": lambda: objects.size(key),
        "delete": lambda: objects.delete(key),
        "put": lambda: objects.put(key, []),
    }
    with pytest.raises(BadInput, match="no file name inside a model's folder"):
        calls[verb]()


@pytest.mark.parametrize("key", ["a/b", "a/file/below"])
def test_what_is_not_there(objects: Objects, key: str) -> None:
    objects.put("a/file", [b"1"])
    for call in (objects.read, objects.size):
        with pytest.raises(FileNotFoundError, match=key):
            call(key)
