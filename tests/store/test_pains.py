"""What users of such platforms suffer with model files, and must not here: in a folder and on S3."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relight.base.errors import CorruptWeights, MissingWeights, NoSpace
from relight.store.cache import NodeCache
from relight.store.manifest import CHUNK
from relight.store.objects import Objects
from relight.store.repository import Repository

MB = 10**6


def lay(objects: Objects, files: dict[str, bytes]) -> None:
    """What somebody put there with another tool."""
    for key, data in files.items():
        objects.put(key, [data])


NEIGHBOURS = {"a.bin": b"a", "sub/c.bin": b"c", "__init__.py": b""}


@pytest.mark.parametrize("folder", ["bert/3", "bert"], ids=["in-a-version", "without-a-version"])
def test_a_prefix_is_a_folder(
    cache: NodeCache, repository: Repository, storage: Any, folder: str, read_all: Any, request: Any, caplog: Any
) -> None:
    """A neighbour with a longer name, an empty file, and the marker of a folder."""
    lay(storage.inner, {f"{folder}/{name}": data for name, data in NEIGHBOURS.items()})
    lay(storage.inner, {f"{folder.replace('bert', 'bert-large')}/b.bin": b"b", "bertha": b"not a model"})
    if repository.objects.remote:
        client, bucket = request.getfixturevalue("client"), request.getfixturevalue("bucket")
        for marker in ("team/models/", f"team/models/{folder}/", f"team/models/{folder}/sub/"):
            client.put_object(Bucket=bucket, Key=marker, Body=b"")
    with cache.fetch(repository, "bert") as fetched:
        assert read_all(fetched.path) == NEIGHBOURS
        assert fetched.version == (3 if "/" in folder else 1)
    assert repository.models() == ["bert", "bert-large"]
    assert "it was not pushed by relight, and has no digests" in caplog.text


@pytest.mark.parametrize("name", ["ber", "bert-", "bert.onnx"])
def test_what_is_not_there_is_an_error_that_names_it(
    cache: NodeCache, repository: Repository, storage: Any, name: str
) -> None:
    lay(storage.inner, {"bert/1/model.onnx": b"x", "bert.onnx": b"a file"})
    with pytest.raises(MissingWeights, match=rf"there is no model '{name}' in {repository.uri}; it has bert$"):
        cache.fetch(repository, name)
    assert not cache.path.exists() or not list(cache.path.glob("entries/*"))


def test_files_of_others_are_followed(
    tmp_path: Path, repository: Repository, storage: Any, read_all: Callable[[Path], dict[str, bytes]]
) -> None:
    cache = NodeCache(tmp_path / "cache", revalidate="always")
    lay(storage.inner, {"bert/2/model.onnx": b"laid there"})
    first = cache.fetch(repository, "bert")
    assert (first.hit, cache.fetch(repository, "bert", 2).hit) == (False, True)
    lay(storage.inner, {"bert/2/model.onnx": b"laid anew.", "bert/2/more": b"1"})
    second = cache.fetch(repository, "bert", 2)
    assert read_all(second.path) == {"model.onnx": b"laid anew.", "more": b"1"}
    assert read_all(first.path) == {"model.onnx": b"laid there"}


def test_files_of_others_that_change_on_the_way_are_not_mixed(
    cache: NodeCache, repository: Repository, storage: Any
) -> None:
    lay(storage.inner, {"bert/1/a": b"1" * 10, "bert/1/b": b"1" * 10})

    def change(verb: str, key: str) -> None:
        if verb == "read" and key.endswith(("/a", "/b")):
            storage.before = lambda verb, key: None
            lay(storage.inner, {"bert/1/a": b"2" * 10, "bert/1/b": b"2" * 10})

    storage.before = change
    with pytest.raises(CorruptWeights, match=rf"{repository.uri}/bert/1/[ab] was changed while it was fetched"):
        cache.fetch(repository, "bert")
    assert not list(cache.path.glob("entries/*"))
    assert not cache.fetch(repository, "bert").hit


def test_a_push_on_top_of_files_of_others(
    cache: NodeCache, repository: Repository, storage: Any, make: Callable[..., Path], read_all: Any
) -> None:
    """Their files stay version 1 until a version is whole, and no number is used for two things."""
    lay(storage.inner, {"bert/model.onnx": b"theirs", "bert/config.pbtxt": b'name: "bert"'})
    seen = []

    def look(verb: str, key: str) -> None:
        if verb == "put" and key.endswith("manifest.json"):
            seen.append(repository.versions("bert"))
            seen.append(read_all(cache.fetch(repository, "bert").path))

    storage.before = look
    assert repository.push(make(10), "bert") == 2
    assert seen == [[1], {"model.onnx": b"theirs"}]
    assert repository.versions("bert") == [2]


def test_the_disk_is_bounded(tmp_path: Path, repository: Repository, storage: Any, make: Callable[..., Path]) -> None:
    """Models of 6, 6 and 6 MB in a cache of 15, the first in use; then one of 20."""
    for name in "abc":
        repository.push(make(6 * MB), name)
    repository.push(make(20 * MB), "d")
    cache = NodeCache(tmp_path / "cache", 15 * MB)
    held = cache.fetch(repository, "a")
    cache.fetch(repository, "b").close()
    cache.fetch(repository, "c").close()
    assert [entry.names for entry in cache.entries()] == [("a/1",), ("c/1",)]
    storage.calls.clear()
    with pytest.raises(NoSpace, match=r"d/1 takes 20 MB, and the node cache .* is limited to 15 MB"):
        cache.fetch(repository, "d")
    assert not [call for call in storage.calls if call.endswith("model.onnx")]
    assert (held.path / "model.onnx").stat().st_size == 6 * MB


def test_what_was_made_of_a_model_counts_and_goes_with_it(
    tmp_path: Path, repository: Repository, make: Callable[..., Path]
) -> None:
    for name in "abc":
        repository.push(make(3 * MB), name)
    cache = NodeCache(tmp_path / "cache", 10 * MB)
    with cache.fetch(repository, "a") as first:
        graph = first.made / "graphs" / "key" / "model.onnx"
        graph.parent.mkdir(parents=True)
        graph.write_bytes(bytes(2 * MB))
    cache.fetch(repository, "b").close()
    assert [(entry.names, entry.shelved.made) for entry in cache.entries()] == [(("a/1",), 2 * MB), (("b/1",), 0)]
    cache.fetch(repository, "c").close()
    assert [entry.names for entry in cache.entries()] == [("b/1",), ("c/1",)]
    assert not graph.exists()


MEMORY = """
import resource, sys
from relight.store import transfer
from relight.store.cache import NodeCache
transfer.THREADS = 2
from relight.store.repository import Repository
repository = Repository.open(sys.argv[1])
repository.versions("bert")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
NodeCache(sys.argv[2]).fetch(repository, "bert")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_memory_is_bounded_by_the_threads_and_not_by_the_model(
    cache: NodeCache, repository: Repository, make: Callable[..., Path]
) -> None:
    source = make(0)
    with open(source / "model.onnx", "wb") as file:
        file.truncate(6 * CHUNK)
    repository.push(source, "bert")
    argv = [sys.executable, "-c", MEMORY, repository.uri, str(cache.path.parent)]
    grown = int(subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True).stdout)
    assert grown < 2 * 2 * CHUNK
