"""The templates for `func create`: written as func writes them, they are functions that work."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from programs.hosting import start
from tables import ROOT

from relight.cluster.project import read_project

TEMPLATES = ROOT / "platform" / "func-templates" / "python"
NAMES = ("relight-model", "relight-step")
OWN = ROOT / "platform" / "relight" / "cli" / "templates"


def create(template: str, name: str, to: Path) -> Path:
    """As `func create` does it: all files but manifest.yaml, whose values go into the func.yaml that it writes."""
    folder = to / name
    shutil.copytree(TEMPLATES / template, folder, ignore=shutil.ignore_patterns("manifest.yaml"))
    manifest: dict[str, Any] = yaml.safe_load((TEMPLATES / template / "manifest.yaml").read_text())
    assert manifest.keys() <= {"builders", "buildpacks", "healthEndpoints", "buildEnvs", "runEnvs", "invoke"}
    value = {
        "specVersion": "0.36.0",
        "name": name,
        "runtime": "python",
        "created": "2026-11-30T12:00:00.000000000Z",
        "run": {"envs": manifest.get("runEnvs") or []},
        "deploy": {"healthEndpoints": manifest["healthEndpoints"]},
    }
    (folder / "func.yaml").write_text(json.dumps(value))
    return folder


def test_the_repository_is_laid_out_as_func_wants_it() -> None:
    assert sorted(path.name for path in TEMPLATES.iterdir()) == sorted(NAMES)
    assert [path.name for path in TEMPLATES.parent.iterdir() if path.is_dir()] == ["python"]


@pytest.mark.parametrize("name", NAMES)
def test_a_template_is_what_relight_new_writes(name: str) -> None:
    own = OWN / name.removeprefix("relight-")
    for path in own.rglob("*"):
        relative = path.relative_to(own).as_posix()
        if path.is_file() and "__pycache__" not in path.parts and relative not in ("func.yaml", "README.md"):
            other = TEMPLATES / name / relative.replace("funcignore", ".funcignore")
            assert other.read_text() == path.read_text(), relative


@pytest.mark.parametrize("name", NAMES)
def test_what_is_created_is_a_function(name: str, tmp_path: Path) -> None:
    project = read_project(create(name, "mine", tmp_path))
    assert project.function.name == "mine"
    assert (project.function.liveness, project.function.readiness) == ("/health/liveness", "/health/readiness")
    assert not (project.folder / "manifest.yaml").exists()


@pytest.mark.parametrize("path", [*TEMPLATES.glob("*/pyproject.toml"), *(ROOT / "functions").glob("*/pyproject.toml")])
def test_the_wheel_that_is_named_is_of_this_version(path: Path) -> None:
    wheel = f"wheels/relight-{importlib.metadata.version('relight')}-py3-none-any.whl"
    assert wheel in path.read_text()


def test_a_step_from_the_template_answers_under_funcs_middleware(tmp_path: Path) -> None:
    folder = create("relight-step", "words", tmp_path)
    program = start("func", str(folder), tmp_path, K_SERVICE="words")
    try:
        program.ready()
        status, _, body = program.post("/", {"text": "to be or not to be"})
        assert (status, json.loads(body)["words"]) == (200, 6)
    finally:
        program.kill()
