"""Every function is a project that Knative Functions and local mode take."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from runtime.serving import loaded

from relight.cluster.project import read_project
from relight.store.repository import Repository
from relight.wire.http import Request, Response

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(path.parent.name for path in (ROOT / "functions").glob("*/func.yaml"))


def test_there_are_functions() -> None:
    assert NAMES == ["embed", "index", "model", "rerank", "retrieve", "search", "split"]


@pytest.mark.parametrize("name", NAMES)
def test_a_project_reads_without_a_mistake(name: str) -> None:
    project = read_project(ROOT / "functions" / name)
    assert project.function.name == name
    assert project.backing == (("milvus",) if name in ("index", "retrieve") else ())


@pytest.mark.parametrize("name", NAMES)
def test_the_modules_to_preload_are_installed(name: str) -> None:
    for module in read_project(ROOT / "functions" / name).preload:
        pytest.importorskip(module, exc_type=ImportError)


def test_the_front_door_is_the_model_function() -> None:
    root = yaml.safe_load((ROOT / "func.yaml").read_text())
    model = yaml.safe_load((ROOT / "functions" / "model" / "func.yaml").read_text())
    assert root == {**model, "name": "front-door"}
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert packaged["packages"] == ["functions/model/function"]


def test_the_front_door_serves_models_of_the_repository(
    package: Callable[[str], ModuleType], encoder_files: Path, tmp_path: Path
) -> None:
    Repository.open((tmp_path / "models").as_uri()).push(encoder_files, "minilm")
    environ = {"RELIGHT_REPOSITORY": (tmp_path / "models").as_uri(), "RELIGHT_CACHE": str(tmp_path / "cache")}
    engine = loaded(package("model").new(), **environ, RELIGHT_MODEL="minilm")
    try:
        assert engine.ready() == (True, "OK")
        metadata = engine.dispatch(Request("GET", "/v2/models/minilm"))
        assert isinstance(metadata, Response)
        declared = json.loads(metadata.body)
        assert [spec["name"] for spec in declared["inputs"]] == ["input_ids", "attention_mask", "token_type_ids"]
        assert [spec["name"] for spec in declared["outputs"]] == ["last_hidden_state"]
    finally:
        engine.stop()


@pytest.mark.parametrize(
    ("name", "missing"), [("index", "MILVUS_URI"), ("retrieve", "MILVUS_URI and EMBED_URL")], ids=["index", "retrieve"]
)
def test_what_the_environment_lacks_is_named(start: Callable[..., Any], name: str, missing: str) -> None:
    with pytest.raises(ValueError, match=f"{missing} (is )?not set"):
        start(name)


@pytest.mark.parametrize(
    ("name", "variable", "value", "expected"),
    [
        ("split", "SPLIT_SIZE", "-1", "a whole number from 0"),
        ("index", "VECTOR_METRIC", "euclid", "cosine, ip"),
        ("retrieve", "RETRIEVE_MODE", "best", "hybrid, dense, bm25"),
        ("retrieve", "RETRIEVE_FUSION", "best", "rrf, weighted"),
        ("retrieve", "RETRIEVE_WEIGHTS", "dense", "weights such as"),
        ("retrieve", "RECALL_EVERY", "hourly", "seconds such as"),
        ("retrieve", "RESULT_CACHE", "no", "a whole number from 0"),
        ("search", "SEARCH_RERANK", "yes", "true or false"),
        ("search", "SEARCH_RERANK_DEPTH", "0", "a whole number from 1"),
    ],
    ids=lambda value: value if value.isupper() else "",
)
def test_a_variable_that_is_wrong_is_named(
    start: Callable[..., Any], name: str, variable: str, value: str, expected: str
) -> None:
    env = {"MILVUS_URI": "http://127.0.0.1:1", "EMBED_URL": "http://127.0.0.1:1", "RETRIEVE_URL": "http://127.0.0.1:1"}
    with pytest.raises(ValueError, match=f"^{variable}: expected {expected}.*got '{value}'"):
        start(name, {**env, variable: value})
