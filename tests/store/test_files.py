"""The driver for folders: what is about folders, and not about storage in general."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from relight.store.files import Files


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "objects")


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
