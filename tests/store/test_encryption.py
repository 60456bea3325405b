"""Weights that are stored encrypted: only the key's holder reads them, or can pass anything off as them."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relight.base.errors import BadInput, CorruptWeights, Forbidden
from relight.store.cache import NodeCache
from relight.store.keys import TAG, Keys, key_id
from relight.store.manifest import CHUNK, File, Manifest
from relight.store.repository import Repository

MANIFEST = "bert/1/.relight/manifest.json"
KEY, OTHER = os.urandom(32), os.urandom(32)


@pytest.fixture
def sealed(storage: Any) -> Repository:
    return Repository(storage, Keys((KEY,)))


def test_what_is_stored_is_unreadable_and_what_is_fetched_is_right(
    sealed: Repository, storage: Any, cache: NodeCache, weights: Path, read_all: Callable[[Path], dict[str, bytes]]
) -> None:
    sealed.push(weights, "bert")
    stored = storage.all()
    assert len(stored["bert/1/model.onnx"]) == 2 * CHUNK + 7 + 3 * TAG
    assert b"version" not in stored["bert/1/tokenizer.json"]
    with cache.fetch(sealed, "bert") as fetched:
        assert read_all(fetched.path) == read_all(weights)
    cache.verify(fetched.digest.removeprefix("sha256:"))


def test_no_nonce_is_used_twice(sealed: Repository, make: Callable[..., Path]) -> None:
    source = make(CHUNK // 2, b"same")
    nonces = [
        nonce
        for _ in range(2)
        for file in sealed.manifest("bert", sealed.push(source, "bert")).files
        for nonce in file.nonces or ()
    ]
    assert len(nonces) == len(set(nonces)) == 4


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ((), f"is encrypted with the key {key_id(KEY)}, and RELIGHT_ENCRYPTION_KEY is not set"),
        ((OTHER,), f"is encrypted with the key {key_id(KEY)}, and RELIGHT_ENCRYPTION_KEY holds {key_id(OTHER)}"),
    ],
    ids=["no-key", "another-key"],
)
def test_without_the_key(
    sealed: Repository,
    storage: Any,
    cache: NodeCache,
    make: Callable[..., Path],
    keys: tuple[bytes, ...],
    sentence: str,
) -> None:
    sealed.push(make(10), "bert")
    with pytest.raises(Forbidden, match=rf"{storage.uri}/bert/1 {sentence}"):
        cache.fetch(Repository(storage, Keys(keys)), "bert")


def test_a_key_is_changed(sealed: Repository, storage: Any, cache: NodeCache, make: Callable[..., Path]) -> None:
    sealed.push(make(10), "bert")
    both = Repository(storage, Keys((OTHER, KEY)))
    both.push(make(10), "bert")
    assert [both.manifest("bert", n).encryption.key for n in (1, 2)] == [key_id(KEY), key_id(OTHER)]  # type: ignore[union-attr]
    for version in (1, 2):
        cache.fetch(both, "bert", version).close()


def moved(storage: Any) -> None:
    """Another model's version in its place: right key, right bytes, wrong name."""
    storage.inner.put("bert/1/model.onnx", [storage.inner.read("other/1/model.onnx")])
    storage.edit(MANIFEST, lambda data: storage.inner.read("other/1/.relight/manifest.json"))


def resealed(change: Callable[[dict[str, Any]], None]) -> Callable[[Any], None]:
    """A manifest that was changed by somebody who can compute its digest, but has no key."""

    def spoil(storage: Any) -> None:
        def edit(data: bytes) -> bytes:
            value = json.loads(data)
            change(value)
            files = [File(f["path"], f["size"], tuple(f["chunks"]), tuple(f["nonces"])) for f in value["files"]]
            value["digest"] = Manifest.of(files).digest
            return json.dumps(value).encode()

        storage.edit(MANIFEST, edit)

    return spoil


def swap_chunks(value: dict[str, Any]) -> None:
    for name in ("chunks", "nonces"):
        value["files"][0][name].reverse()


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(moved, id="of-another-model"),
        pytest.param(resealed(lambda value: value["files"].pop()), id="a-file-left-out"),
        pytest.param(resealed(swap_chunks), id="chunks-swapped"),
        pytest.param(resealed(lambda value: value["encryption"].update(seal="00")), id="no-seal"),
    ],
)
def test_what_somebody_without_the_key_put_there(
    sealed: Repository, storage: Any, cache: NodeCache, make: Callable[..., Path], spoil: Callable[[Any], None]
) -> None:
    source = make(2 * CHUNK)
    (source / "second").write_bytes(b"2")
    for name in ("bert", "other"):
        sealed.push(source, name)
    spoil(storage)
    with pytest.raises(CorruptWeights, match=r"bert/1 is corrupt: its manifest was not made with the key"):
        cache.fetch(sealed, "bert")
    assert not list(cache.path.glob("entries/*"))


def test_a_chunk_in_anothers_place_does_not_open(sealed: Repository, make: Callable[..., Path]) -> None:
    """Even under a manifest that claims so: a chunk is bound to where it was stored."""
    sealer = Keys((KEY,)).sealer()
    nonce, stored = sealer.seal_chunk(b"weights", b"here")
    assert sealer.open_chunk(nonce, memoryview(stored), b"here", "uri") == b"weights"
    for data, place in ((stored, b"there"), (bytes([stored[0] ^ 1]) + stored[1:], b"here"), (stored[:5], b"here")):
        with pytest.raises(CorruptWeights, match="uri is corrupt: it was not stored in this place with the key"):
            sealer.open_chunk(nonce, memoryview(data), place, "uri")


def test_what_is_stored_is_checked_without_the_key(sealed: Repository, storage: Any, make: Callable[..., Path]) -> None:
    from relight.store.transfer import check

    sealed.push(make(2 * CHUNK), "bert")
    blind = Repository(storage)
    check(blind.stored(blind.resolve("bert", 1)), lambda done, total: None)
    storage.edit("bert/1/model.onnx", lambda data: data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptWeights, match="do not have the digest"):
        check(blind.stored(blind.resolve("bert", 1)), lambda done, total: None)


def encoded(size: int) -> str:
    return base64.b64encode(bytes(size)).decode()


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"RELIGHT_ENCRYPTION_KEY": "hunter2"}, "RELIGHT_ENCRYPTION_KEY: expected the base64 of 32 bytes"),
        ({"RELIGHT_ENCRYPTION_KEY": encoded(16)}, "RELIGHT_ENCRYPTION_KEY: expected the base64 of 32 bytes"),
        ({"RELIGHT_ENCRYPTION_KEY_FILE": "/no/where"}, "RELIGHT_ENCRYPTION_KEY_FILE: cannot read /no/where"),
        ({"RELIGHT_ENCRYPTION_KEY_FILE": "/dev/null"}, "RELIGHT_ENCRYPTION_KEY_FILE: /dev/null holds no key"),
    ],
)
def test_keys_that_are_refused(environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence) as refused:
        Keys.from_environ(environ)
    assert "hunter2" not in refused.value.message


def test_keys_are_never_shown() -> None:
    keys = Keys.from_environ({"RELIGHT_ENCRYPTION_KEY": f"{encoded(32)}\n {base64.b64encode(KEY).decode()}"})
    assert keys.keys == (bytes(32), KEY)
    assert repr(keys) == "Keys()"
    assert not Keys.from_environ({})
