"""What belongs to a model and not to a version: read anew when it has changed, kept on the node, bounded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from modelrepo.tiny import put, scaling
from runtime.serving import loaded

from relight.base.errors import CorruptWeights
from relight.runtime.lifecycle import State
from relight.sdk import OnnxModel
from relight.store import modelfiles
from relight.store.repository import Repository


@pytest.fixture
def opened(repository: Path) -> Repository:
    (repository / "m" / "warmup").mkdir(parents=True)
    (repository / "m" / "config.pbtxt").write_text("max_batch_size: 2")
    (repository / "m" / "warmup" / "ids").write_bytes(b"\0\xff")
    return Repository.open(repository.as_uri())


def test_what_there_is(opened: Repository, tmp_path: Path, repository: Path) -> None:
    files = modelfiles.fetch(opened, "m", tmp_path / "cache")
    assert (files.config, files.warmup) == (b"max_batch_size: 2", {"ids": b"\0\xff"})
    assert modelfiles.fetch(opened, "m", tmp_path / "cache") == files
    (repository / "m" / "config.pbtxt").write_text("max_batch_size: 16")
    changed = modelfiles.fetch(opened, "m", tmp_path / "cache")
    assert (changed.config, changed.tag != files.tag) == (b"max_batch_size: 16", True)
    assert modelfiles.fetch(opened, "other") == modelfiles.ModelFiles(tag=modelfiles.fetch(opened, "another").tag)


def test_a_start_that_asks_nobody_has_what_was_kept(opened: Repository, tmp_path: Path, repository: Path) -> None:
    cache = tmp_path / "cache"
    kept = modelfiles.fetch(opened, "m", cache)
    os.rename(repository, tmp_path / "elsewhere")
    assert modelfiles.fetch(opened, "m", cache, fresh=False) == kept
    (file,) = cache.glob("v1/model-files/*/m.json")
    for torn in (b"", b"{}", b"[]", b'{"format": 2}'):
        file.write_bytes(torn)
        assert modelfiles.fetch(opened, "m", cache, fresh=False).config is None, "it is asked for, and is gone"


def test_a_file_that_is_no_configuration_is_not_read(
    opened: Repository, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modelfiles, "LIMIT", 100)
    (repository / "m" / "warmup" / "weights").write_bytes(b"x" * 101)
    with pytest.raises(CorruptWeights, match=r"m/warmup/weights is 101 bytes; more than 100 are not read"):
        modelfiles.fetch(opened, "m")


def test_one_model_starts_without_its_repository(repository: Path, tmp_path: Path) -> None:
    put(repository, "m", 1, scaling(2))
    (repository / "m" / "config.pbtxt").write_text("max_batch_size: 2")
    opened = Repository.open(repository.as_uri())
    opened.push(repository / "m", "n")
    environ = {
        "RELIGHT_MODEL": "n",
        "RELIGHT_MODEL_VERSION": "1",
        "RELIGHT_REPOSITORY": repository.as_uri(),
        "RELIGHT_CACHE": str(tmp_path / "cache"),
    }
    for where in (repository, tmp_path / "elsewhere"):
        if where != repository:
            os.rename(repository, where)
        model = OnnxModel()
        engine = loaded(model, **environ)
        assert engine.lifecycle.state is State.READY, engine.lifecycle.reason
        assert model.max_batch_size == 2
        engine.stop()
