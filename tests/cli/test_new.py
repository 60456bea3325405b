"""`relight new`: what is written is a function, and nothing of the user's is overwritten."""

from __future__ import annotations

import ast
import importlib
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from relight import sdk
from relight.base import folders
from relight.base.errors import BadInput, Conflict
from relight.cli.new import write
from relight.cluster.project import read_project
from relight.cluster.service import Options, build_objects

FUNC_SCHEMA = {
    "type": "object",
    "required": ["specVersion", "created", "name"],
    "additionalProperties": False,
    "properties": {
        "specVersion": {"const": "0.36.0"},
        "name": {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"},
        "runtime": {"const": "python"},
        "created": {"type": "string", "format": "date-time"},
        "invoke": {"enum": ["http", "cloudevent"]},
        "build": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"builder": {"const": "host"}, "baseImage": {"type": "string"}},
        },
        "run": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "envs": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {"name": {"type": "string"}, "value": {"type": "string"}},
                    },
                }
            },
        },
        "deploy": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "options": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "scale": {
                            "type": "object",
                            "additionalProperties": False,
                            "properties": {
                                "min": {"type": "integer"},
                                "max": {"type": "integer"},
                                "metric": {"enum": ["concurrency", "rps"]},
                                "target": {"type": "number"},
                            },
                        }
                    },
                },
                "healthEndpoints": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"liveness": {"type": "string"}, "readiness": {"type": "string"}},
                },
            },
        },
    },
}
"""The part of the published schema of func.yaml that the templates use."""

TEMPLATES = pytest.mark.parametrize("template", ["step", "model", "models"])


def make(template: str, folder: Path, name: str = "hello") -> Path:
    return write(template, name, folder, {"__MODEL__": "minilm"})


@TEMPLATES
def test_what_is_written_is_a_function(template: str, tmp_path: Path) -> None:
    folder = make(template, tmp_path / "hello")
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()) == [
        *(".funcignore", "README.md", "func.yaml", "function/__init__.py", "function/func.py", "pyproject.toml"),
        "relight.yaml",
    ]
    project = read_project(folder)
    assert project.function.name == "hello"
    assert project.function.warnings == ()
    assert build_objects(project, Options())[0]["metadata"]["name"] == "hello"
    assert "function/func.py" in folders.listing(folder)
    # The YAML is read with every scalar as text, for the schema is one of JSON: a bare time must be a text too.
    value = yaml.load((folder / "func.yaml").read_text(), _NoTimes)
    jsonschema.validate(value, FUNC_SCHEMA, format_checker=jsonschema.FormatChecker())
    assert tomllib.loads((folder / "pyproject.toml").read_text())["project"]["name"] == "function"


class _NoTimes(yaml.SafeLoader):
    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, rule) for tag, rule in rules if tag != "tag:yaml.org,2002:timestamp"]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


@TEMPLATES
def test_nothing_of_the_template_is_left_unfilled(template: str, tmp_path: Path) -> None:
    for path in make(template, tmp_path / "hello").rglob("*"):
        if path.is_file():
            text = path.read_text()
            assert "__NAME__" not in text
            assert "__MODEL__" not in text
            assert "__CREATED__" not in text
            assert "__PYTHON__" not in text


@TEMPLATES
def test_the_code_fits_on_a_page_and_is_python(template: str, tmp_path: Path) -> None:
    text = (make(template, tmp_path / "hello") / "function" / "func.py").read_text()
    tree = ast.parse(text)
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported <= {"re", "collections", "typing", "relight"}
    assert len(text.splitlines()) <= 30


def test_the_model_that_is_served_is_in_func_yaml(tmp_path: Path) -> None:
    project = read_project(make("model", tmp_path / "hello"))
    assert [(env.name, env.value) for env in project.function.envs] == [
        ("RELIGHT_MODEL", "minilm"),
        ("RELIGHT_FUNCTION", "model"),
    ]
    assert project.preload == ("numpy", "onnxruntime", "relight.backends.onnxruntime")


def test_all_models_are_served_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make("models", tmp_path / "hello")
    project = read_project(folder)
    assert [(env.name, env.value) for env in project.function.envs] == [("RELIGHT_FUNCTION", "model")]
    assert isinstance(load(folder, monkeypatch).new(), sdk.ModelServer)


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "hello").mkdir()
    (tmp_path / "hello" / "mine.txt").write_text("mine")
    with pytest.raises(Conflict, match="not empty"):
        make("step", tmp_path / "hello")
    assert [path.name for path in tmp_path.rglob("*")] == ["hello", "mine.txt"]


def test_an_empty_folder_stays_the_same_folder(tmp_path: Path) -> None:
    (tmp_path / "hello").mkdir()
    before = (tmp_path / "hello").stat().st_ino
    make("step", tmp_path / "hello")
    assert (tmp_path / "hello").stat().st_ino == before
    assert [path.name for path in tmp_path.iterdir()] == ["hello"]


@pytest.mark.parametrize("name", ["Hello", "2hello", "a_b", "-a", "a-", "", "a" * 64, "../x", "a/b"])
def test_names_that_no_function_can_have(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="lower-case"):
        make("step", tmp_path / "f", name)
    assert list(tmp_path.iterdir()) == []


def test_half_a_folder_is_never_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(Conflict, match="No space left"):
        make("step", tmp_path / "hello")
    assert list(tmp_path.iterdir()) == []


def load(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package `function` of a folder, imported as a replica does it."""
    monkeypatch.syspath_prepend(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == "function"]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module("function")


def test_the_step_counts_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = load(make("step", tmp_path / "hello"), monkeypatch).new()
    assert step.run({"text": "To be, or not to be"}, None) == {
        "words": 6,
        "counts": {"to": 2, "be": 2, "or": 1, "not": 1},
    }
    with pytest.raises(BadInput, match="expected JSON such as"):
        step.run({"txt": ""}, None)


def test_the_model_takes_its_weights_from_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(make("model", tmp_path / "hello"), monkeypatch).new()
    assert isinstance(model, sdk.OnnxModel)
    assert model.uses_repository
