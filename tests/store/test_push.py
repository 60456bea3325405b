"""Pushing, to a folder and to S3: what is stored, what is refused, and that nobody ever sees a half of it."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store.faulty import Faulty

from relight.base.errors import BadInput, Conflict, CorruptWeights, MissingWeights, NoSpace, StoreError, Unreachable
from relight.store.cache import NodeCache
from relight.store.files import Files
from relight.store.keys import Keys
from relight.store.manifest import CHUNK, File, Manifest
from relight.store.repository import Repository

MODEL_JSON = "bert/.relight/model.json"


def files_in(repository: Repository, name: str, version: int) -> dict[str, int]:
    return {file.path: file.size for file in repository.manifest(name, version).files}


def test_a_folder_becomes_the_next_version(repository: Repository, weights: Path) -> None:
    told: list[tuple[int, int]] = []
    assert repository.push(weights, "minilm", on_progress=lambda done, total: told.append((done, total))) == 1
    assert repository.push(weights, "minilm") == 2
    assert repository.versions("minilm") == [1, 2]
    assert repository.latest("minilm") == 2
    assert repository.models() == ["minilm"]
    size = 2 * CHUNK + 7
    assert files_in(repository, "minilm", 1) == {"assets/empty.txt": 0, "model.onnx": size, "tokenizer.json": 18}
    assert repository.manifest("minilm", 1).digest == repository.manifest("minilm", 2).digest
    assert told[-1] == (size + 18, size + 18)
    assert told == sorted(told)
    assert repository.model("minilm") == {"format": 1, "name": "minilm", "versions": [1, 2], "config": None}


def test_the_layout_of_triton(repository: Repository, weights: Path, tmp_path: Path) -> None:
    model = tmp_path / "triton"
    model.mkdir()
    (model / "config.pbtxt").write_text('name: "bert"\n')
    weights.rename(model / "7")
    assert repository.push(model, "bert") == 1
    assert "model.onnx" in files_in(repository, "bert", 1)
    assert repository.objects.read("bert/config.pbtxt") == b'name: "bert"\n'
    assert repository.model("bert")["config"].startswith("sha256:")


def test_one_file(repository: Repository, weights: Path) -> None:
    source = (weights / "model.onnx").rename(weights.parent / "exported.onnx")
    assert repository.push(source, "bert") == 1
    assert list(files_in(repository, "bert", 1)) == ["model.onnx"]


def test_a_neighbour_with_a_longer_name_is_another_model(repository: Repository, weights: Path) -> None:
    repository.push(weights, "bert-large")
    assert repository.versions("bert") == []
    with pytest.raises(MissingWeights, match=r"no model 'bert' in \w+://.*; it has bert-large"):
        repository.latest("bert")
    repository.push(weights, "bert")
    assert (repository.versions("bert"), repository.versions("bert-large")) == ([1], [1])


def test_links_to_files_are_followed(repository: Repository, weights: Path, tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"shared")
    (weights / "linked.bin").symlink_to(tmp_path / "blob")
    repository.push(weights, "bert")
    assert repository.objects.read("bert/1/linked.bin") == b"shared"


def broken_link(folder: Path) -> None:
    (folder / "lost").symlink_to(folder / "nowhere")


def linked_folder(folder: Path) -> None:
    (folder / "round").symlink_to(folder)


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def two_versions(folder: Path) -> None:
    (folder / "1").mkdir()
    (folder / "2").mkdir()


def version_and_more(folder: Path) -> None:
    (folder / "1").mkdir()
    (folder / "1" / "model.onnx").touch()


def backslash(folder: Path) -> None:
    (folder / "a\\b").touch()


def emptied(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (broken_link, "lost links to nothing"),
        (linked_folder, "round links to a folder"),
        (pipe, "pipe is no regular file"),
        (two_versions, "versions 1, 2: push one of them"),
        (version_and_more, "version 1 and beside it assets/empty.txt, model.onnx, tokenizer.json"),
        (backslash, "no file name inside a model's folder"),
        (emptied, "holds no file to push"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_folders_that_are_refused(
    repository: Repository, storage: Any, weights: Path, spoil: Callable[[Path], None], sentence: str
) -> None:
    spoil(weights)
    with pytest.raises(BadInput, match=sentence):
        repository.push(weights, "bert")
    assert storage.all() == {}


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b", "-a", ".hidden", "a\n", "ä", "a" * 129])
def test_names_that_are_refused(repository: Repository, weights: Path, name: str) -> None:
    for call in (lambda: repository.push(weights, name), lambda: repository.versions(name)):
        with pytest.raises(BadInput, match="no name for a model"):
            call()


@pytest.mark.parametrize(
    "uri", ["s3:///models", "s3://bucket/m?x=1", "models", "file:models", "http://host/models", ""]
)
def test_repositories_that_cannot_be_opened(uri: str) -> None:
    with pytest.raises(BadInput, match="supported are /absolute/path, file:///absolute/path, and s3://bucket/prefix"):
        Repository.open(uri)


def test_a_uri_with_escapes(tmp_path: Path, weights: Path) -> None:
    folder = tmp_path / "my models #1"
    assert Repository.open(folder.as_uri()).push(weights, "bert") == 1
    assert (folder / "bert" / "1" / "model.onnx").is_file()


def test_a_full_disk_leaves_nothing(tmp_path: Path, weights: Path) -> None:
    storage: Any = Faulty(Files(tmp_path / "repository"))
    repository = Repository(storage)
    storage.limit = CHUNK
    with pytest.raises(NoSpace, match=r"cannot write file://.*/bert/1/model.onnx: No space left on device"):
        repository.push(weights, "bert")
    assert [path for path in (tmp_path / "repository").rglob("*")] == []
    storage.limit = None
    assert repository.push(weights, "bert") == 1


@pytest.mark.parametrize("key", ["claim.json", "model.onnx", "tokenizer.json", "manifest.json"])
def test_storage_that_fails_anywhere_leaves_nothing(
    repository: Repository, storage: Any, weights: Path, key: str
) -> None:
    def fail(verb: str, at: str) -> None:
        if verb == "put" and at.endswith(key):
            raise StoreError("storage is gone")

    storage.before = fail
    with pytest.raises(StoreError, match="storage is gone"):
        repository.push(weights, "bert")
    assert storage.all() == {}


def test_a_file_that_is_taken_away_meanwhile(repository: Repository, storage: Any, weights: Path) -> None:
    def rob(verb: str, key: str) -> None:
        if verb == "put" and key.endswith("model.onnx"):
            storage.inner.delete("bert/1/tokenizer.json")

    storage.before = rob
    with pytest.raises(Conflict, match="changed by somebody else during the push"):
        repository.push(weights, "bert")
    assert repository.versions("bert") == []


PUSH = """
import os, signal, sys
from relight.store.repository import Repository
repository = Repository.open(sys.argv[1])
put = repository.objects.put
def deadly(key, chunks, **options):
    if key.endswith(sys.argv[4]):
        next(iter(chunks))
        os.kill(os.getpid(), signal.SIGKILL)
    put(key, chunks, **options)
if sys.argv[4]:
    repository.objects.put = deadly
print(repository.push(sys.argv[2], sys.argv[3]))
"""


def start_push(uri: str, weights: Path, name: str, die_at: str = "") -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", PUSH, uri, str(weights), name, die_at]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("at", ["model.onnx", "tokenizer.json", "manifest.json"])
def test_a_push_that_is_killed_is_never_seen_and_gone_on_with_by_the_next(
    repository: Repository, storage: Any, weights: Path, at: str, cache: NodeCache, read_all: Any
) -> None:
    with start_push(storage.uri, weights, "bert", at) as process:
        assert process.wait(30) == -signal.SIGKILL
    assert storage.all()
    assert (repository.versions("bert"), repository.models()) == ([], [])
    with pytest.raises(MissingWeights):
        repository.manifest("bert", 1)
    stored = {key for key in storage.all() if ".relight" not in key}
    storage.calls.clear()
    assert repository.push(weights, "bert") == 1
    put = {call.removeprefix("put ") for call in storage.calls if call.startswith("put") and ".relight" not in call}
    assert put == {f"bert/1/{name}" for name in read_all(weights)} - stored, "what was there is not sent again"
    with cache.fetch(repository, "bert") as fetched:
        assert read_all(fetched.path) == read_all(weights)
    left = sorted(key for key in storage.all() if not key.startswith("bert/1/"))
    assert left == [MODEL_JSON]


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "then-encrypted"])
def test_other_weights_after_a_push_that_was_killed(
    repository: Repository, storage: Any, weights: Path, cache: NodeCache, read_all: Any, encrypted: bool
) -> None:
    """What differs is stored anew, what does not belong there goes."""
    with start_push(storage.uri, weights, "bert", "manifest.json") as process:
        assert process.wait(30) == -signal.SIGKILL
    (weights / "assets" / "empty.txt").unlink()
    with open(weights / "model.onnx", "r+b") as file:
        file.seek(CHUNK)
        file.write(b"other")
    sealing = Repository(storage, Keys((bytes(32),) if encrypted else ()))
    assert sealing.push(weights, "bert") == 1
    with cache.fetch(sealing, "bert") as fetched:
        assert read_all(fetched.path) == read_all(weights)
    kept = [key for key in storage.all() if key.startswith("bert/1/") and ".relight" not in key]
    assert sorted(kept) == ["bert/1/model.onnx", "bert/1/tokenizer.json"]


def test_a_push_whose_way_is_cut_goes_on(repository: Repository, storage: Any, weights: Path) -> None:
    """In the same process too, and on any machine: it has said that it gave up."""

    def fail(verb: str, key: str) -> None:
        if verb == "put" and key.endswith("model.onnx"):
            raise Unreachable("the way to storage is cut")

    storage.before = fail
    with pytest.raises(Unreachable):
        repository.push(weights, "bert")
    assert repository.versions("bert") == []
    storage.before = lambda verb, key: None
    storage.calls.clear()
    assert repository.push(weights, "bert") == 1
    assert "put bert/1/model.onnx" in storage.calls
    assert "put bert/1/tokenizer.json" not in storage.calls


def test_a_number_whose_version_was_removed_is_not_used_again(
    repository: Repository, storage: Any, weights: Path
) -> None:
    repository.push(weights, "bert")
    repository.remove("bert", 1)
    # As it is when the process that removed it is dead, and something of it was left.
    for key in [key for key in storage.all() if "claim" in key]:
        storage.edit(key, lambda data: json.dumps(json.loads(data) | {"pid": 0}).encode())
    storage.inner.put("bert/1/left.bin", [b"left"])
    assert repository.sweep("bert") == 1
    for key in [key for key in storage.all() if "claim" in key]:
        storage.edit(key, lambda data: json.dumps(json.loads(data) | {"pid": 0}).encode())
    assert repository.push(weights, "bert") == 2


def test_pushes_at_once_take_a_version_each_and_do_not_mix(
    repository: Repository, storage: Any, make: Callable[..., Path]
) -> None:
    sources = [make(CHUNK + 1, bytes([number])) for number in range(4)]
    processes = [start_push(storage.uri, source, "bert") for source in sources]
    taken = {}
    for process, source in zip(processes, sources, strict=True):
        with process:
            out, _ = process.communicate(timeout=60)
            taken[int(out)] = source
    assert repository.versions("bert") == sorted(taken) == [1, 2, 3, 4]
    assert repository.model("bert")["versions"] == [1, 2, 3, 4]
    for version, source in taken.items():
        assert storage.inner.read(f"bert/{version}/model.onnx") == (source / "model.onnx").read_bytes()


def test_a_version_of_another_tool_is_there(repository: Repository, storage: Any, weights: Path, caplog: Any) -> None:
    repository.push(weights, "bert")
    storage.inner.put("bert/3/model.onnx", [b"laid there"])
    assert repository.versions("bert") == [1, 3]
    manifest = repository.manifest("bert", 3)
    assert not manifest.is_checked
    assert "bert/3: it was not pushed by relight" in caplog.text
    assert repository.push(weights, "bert") == 4


def edit(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    def apply(data: bytes) -> bytes:
        value = json.loads(data)
        change(value)
        return json.dumps(value).encode()

    return apply


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        pytest.param(lambda data: data[:-20], "is corrupt: it is not JSON", id="cut"),
        pytest.param(lambda data: b"", "is corrupt: it is not JSON", id="empty"),
        pytest.param(lambda data: b"[1]", "is corrupt: it has no format number", id="list"),
        pytest.param(edit(lambda v: v.update(format=2)), "of format 2, and this relight reads format 1", id="newer"),
        pytest.param(edit(lambda v: v.update(hash="md5")), "digests by 'md5', and this relight knows", id="hash"),
        pytest.param(edit(lambda v: v["files"].pop()), "digest does not fit the files", id="file-gone"),
        pytest.param(edit(lambda v: v["files"][0].update(size=1)), "digest does not fit the files", id="size"),
        pytest.param(edit(lambda v: v["files"][0].update(path="../up")), "no file name inside", id="escape"),
        pytest.param(edit(lambda v: v["files"][0].update(path="/etc/x")), "no file name inside", id="absolute"),
        pytest.param(edit(lambda v: v["files"].append(v["files"][0])), "digest does not fit the files", id="twice"),
        pytest.param(edit(lambda v: v.pop("files")), "it is no manifest", id="no-files"),
    ],
)
def test_manifests_that_are_refused(
    repository: Repository, storage: Any, make: Callable[..., Path], spoil: Callable[[bytes], bytes], sentence: str
) -> None:
    repository.push(make(3), "bert")
    storage.edit("bert/1/.relight/manifest.json", spoil)
    with pytest.raises(StoreError, match=rf"bert/1/.relight/manifest.json .*{sentence}"):
        repository.manifest("bert", 1)


def test_a_manifest_reads_as_it_was_written(repository: Repository, weights: Path) -> None:
    repository.push(weights, "bert")
    manifest = repository.manifest("bert", 1)
    assert Manifest.decode(manifest.encode(), "here") == manifest


def with_sha256(data: bytes, weights: bytes) -> bytes:
    """A manifest as they were before they named a hash."""
    value = json.loads(data)
    del value["hash"]
    chunks = [hashlib.sha256(weights).hexdigest()]
    value["files"] = [{"path": "model.onnx", "size": len(weights), "chunks": chunks}]
    value["digest"] = Manifest.of([File("model.onnx", len(weights), tuple(chunks))], "sha256").digest
    return json.dumps(value).encode()


def test_a_manifest_that_names_no_hash_has_sha256(
    repository: Repository, storage: Any, make: Callable[..., Path], cache: NodeCache
) -> None:
    source = make(100)
    repository.push(source, "bert")
    weights = (source / "model.onnx").read_bytes()
    storage.edit("bert/1/.relight/manifest.json", lambda data: with_sha256(data, weights))
    with cache.fetch(repository, "bert") as fetched:
        assert (fetched.path / "model.onnx").read_bytes() == weights
    cache.verify(fetched.digest.removeprefix("sha256:"))
    storage.edit("bert/1/model.onnx", lambda data: bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(CorruptWeights, match="do not have the digest"):
        NodeCache(cache.path.parent / "other").fetch(repository, "bert")
