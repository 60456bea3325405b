"""What lies on a node already is not fetched, and not copied."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from relight.base.errors import CorruptWeights
from relight.store.adopting import clone
from relight.store.cache import NodeCache
from relight.store.files import Files
from relight.store.manifest import CHUNK
from relight.store.repository import Repository


@pytest.fixture
def two(repository: Repository, storage: Any, weights: Path) -> None:
    """Two versions with the same weights and another tokenizer."""
    repository.push(weights, "bert")
    (weights / "tokenizer.json").write_text('{"version": "2.0"}')
    repository.push(weights, "bert")
    storage.calls.clear()


def test_a_file_of_another_entry_is_linked(
    cache: NodeCache, repository: Repository, storage: Any, two: None, weights: Path, read_all: Any
) -> None:
    first = cache.fetch(repository, "bert", 1)
    storage.calls.clear()
    second = cache.fetch(repository, "bert", 2)
    assert not [call for call in storage.calls if "model.onnx" in call], "its bytes are on this node"
    assert read_all(second.path) == read_all(weights)
    shared = first.path / "model.onnx", second.path / "model.onnx"
    assert os.path.samefile(*shared)
    assert shared[0].stat().st_mode & 0o222 == 0
    first.close()
    assert cache.evict(first.digest.removeprefix("sha256:"))
    cache.verify(second.digest.removeprefix("sha256:"))


def test_a_damaged_file_of_another_entry_is_not_taken(
    cache: NodeCache, repository: Repository, storage: Any, two: None, weights: Path, read_all: Any
) -> None:
    first = cache.fetch(repository, "bert", 1)
    damaged = first.path / "model.onnx"
    damaged.chmod(0o644)
    with open(damaged, "r+b") as file:
        file.seek(CHUNK + 3)
        file.write(b"damaged")
    before = damaged.read_bytes()
    second = cache.fetch(repository, "bert", 2)
    assert read_all(second.path) == read_all(weights)
    assert damaged.read_bytes() == before, "what somebody uses is not written to"


def test_what_a_killed_process_adopted_is_not_written_to(
    cache: NodeCache, repository: Repository, storage: Any, two: None, weights: Path, read_all: Any
) -> None:
    """It was linked, and its journal never said so."""
    first = cache.fetch(repository, "bert", 1)
    digest = repository.manifest("bert", 2).digest.removeprefix("sha256:")
    left = cache.path / "fetching" / digest
    (left / "files").mkdir(parents=True)
    (left / "size").write_text(str(repository.manifest("bert", 2).size))
    os.link(first.path / "model.onnx", left / "files" / "model.onnx")
    second = cache.fetch(repository, "bert", 2)
    assert read_all(second.path) == read_all(weights)
    assert (first.path / "model.onnx").stat().st_mode & 0o222 == 0


@pytest.fixture(scope="module")
def shared_blocks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on a file system whose files can share blocks."""
    folder = tmp_path_factory.mktemp("btrfs")
    image = folder / "image"
    with open(image, "wb") as file:
        file.truncate(400 * 2**20)
    mkfs = shutil.which("mkfs.btrfs")
    made = mkfs and subprocess.run([mkfs, "-q", str(image)], capture_output=True, check=False).returncode == 0
    mount = folder / "mount"
    mount.mkdir()
    if not made or subprocess.run(["mount", "-o", "loop", image, mount], capture_output=True, check=False).returncode:
        pytest.skip("needs mkfs.btrfs, and the right to mount its image")
    yield mount
    subprocess.run(["umount", mount], check=True)


def test_a_file_of_a_folder_is_cloned(shared_blocks: Path, make: Callable[..., Path]) -> None:
    source = make(40 * 2**20)
    repository = Repository(Files(shared_blocks / "repository"))
    repository.push(source, "bert")
    subprocess.run(["sync", "-f", shared_blocks], check=True)
    before = shutil.disk_usage(shared_blocks).used
    cache = NodeCache(shared_blocks / "cache")
    fetched = cache.fetch(repository, "bert")
    subprocess.run(["sync", "-f", shared_blocks], check=True)
    assert shutil.disk_usage(shared_blocks).used - before < 10 * 2**20
    stored = shared_blocks / "repository" / "bert" / "1" / "model.onnx"
    assert not os.path.samefile(fetched.path / "model.onnx", stored)
    with open(stored, "r+b") as file:
        file.write(b"written to by somebody")
    cache.verify(fetched.digest.removeprefix("sha256:"))
    fetched.close()
    cache.evict(fetched.digest.removeprefix("sha256:"))
    with pytest.raises(CorruptWeights, match="do not have the digest"):
        cache.fetch(repository, "bert")


def test_where_blocks_cannot_be_shared_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "origin").write_bytes(b"x" * 5000)
    try:
        clone(tmp_path / "origin", tmp_path / "copy")
    except OSError:
        assert not (tmp_path / "copy").exists()
    else:
        assert (tmp_path / "copy").read_bytes() == b"x" * 5000
