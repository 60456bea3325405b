"""Every function is a project that Knative Functions and local mode take."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from relight.cluster.project import read_project

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(path.parent.name for path in (ROOT / "functions").glob("*/func.yaml"))


def test_there_are_functions() -> None:
    assert NAMES == ["embed", "index", "model", "retrieve", "split"]


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


def test_the_front_door_serves_what_the_file_declares(start: Callable[..., Any], encoder_files: Path) -> None:
    function = start("model", files=encoder_files)
    try:
        assert [spec.name for spec in function.inputs] == ["input_ids", "attention_mask", "token_type_ids"]
        assert [spec.name for spec in function.outputs] == ["last_hidden_state"]
    finally:
        function.unload()


@pytest.mark.parametrize(
    ("name", "missing"), [("index", "MILVUS_URI"), ("retrieve", "MILVUS_URI and EMBED_URL")], ids=["index", "retrieve"]
)
def test_what_the_environment_lacks_is_named(start: Callable[..., Any], name: str, missing: str) -> None:
    with pytest.raises(ValueError, match=f"{missing} (is )?not set"):
        start(name)
