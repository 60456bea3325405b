"""A function's folder: what is accepted, and what is refused by file and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from relight.base.errors import NotFound, Unprocessable
from relight.cluster.project import read_project

FUNC = 'specVersion: 0.36.0\nname: hello\ncreated: "2026-01-31T12:00:00Z"\n'
PYPROJECT = '[project]\nname = "function"\n'
GOOD = {
    "func.yaml": FUNC,
    "pyproject.toml": PYPROJECT,
    "function/__init__.py": "from .func import new\n",
    "function/func.py": "def new():\n    return object()\n",
}


def lay(folder: Path, files: dict[str, str | None]) -> Path:
    for name, text in files.items():
        if text is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    return folder


def test_a_folder(tmp_path: Path) -> None:
    project = read_project(
        lay(
            tmp_path,
            GOOD
            | {
                "pyproject.toml": PYPROJECT + '[tool.relight]\npreload = ["numpy", "a.b"]\nbacking = ["milvus"]\n',
                "relight.yaml": "spec:\n  template:\n    spec: {timeoutSeconds: 60}\npolicy:\n  keep: 5m\n",
            },
        )
    )
    assert project.folder == tmp_path.resolve()
    assert project.function.name == "hello"
    assert project.preload == ("numpy", "a.b")
    assert project.backing == ("milvus",)
    assert project.patch == {"spec": {"template": {"spec": {"timeoutSeconds": 60}}}}
    assert project.policy == {"keep": "5m"}


def test_reading_a_folder_runs_none_of_it(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    spy = f"open({str(marker)!r}, 'w')\n"
    lay(tmp_path / "f", GOOD | {"function/__init__.py": spy + "from .func import new\n"})
    read_project(tmp_path / "f")
    assert not marker.exists()


NEW_FOUND = [
    ("defined in the package", {"function/__init__.py": "def new():\n    return 1\n"}),
    ("imported absolutely", {"function/__init__.py": "from function.func import new\n"}),
    ("through two modules", {"function/func.py": "from .other import new\n", "function/other.py": "def new(): ...\n"}),
    (
        "from a package",
        {
            "function/__init__.py": "from .parts import new\n",
            "function/parts/__init__.py": "from .one import new as new\n",
            "function/parts/one.py": "def new(): ...\n",
        },
    ),
]


@pytest.mark.parametrize("files", [row[1] for row in NEW_FOUND], ids=[row[0] for row in NEW_FOUND])
def test_new_is_found(tmp_path: Path, files: dict[str, str]) -> None:
    read_project(lay(tmp_path, GOOD | files))


WRONG: list[tuple[str, dict[str, str | None], list[str]]] = [
    ("no func.yaml", {"func.yaml": None}, ["func.yaml: missing"]),
    ("an unknown key", {"func.yaml": FUNC + "gpu: 1\n"}, ["func.yaml: gpu: unknown key"]),
    ("no YAML", {"func.yaml": "name: ["}, ["func.yaml: func.yaml is not YAML"]),
    ("another language", {"func.yaml": FUNC + "runtime: go\n"}, ["func.yaml: runtime: 'go'"]),
    ("no pyproject", {"pyproject.toml": None}, ["pyproject.toml: missing"]),
    ("another project name", {"pyproject.toml": '[project]\nname = "hello"\n'}, ["pyproject.toml: project.name"]),
    ("no TOML", {"pyproject.toml": "[project\n"}, ["pyproject.toml: it is not TOML"]),
    (
        "settings of relight",
        {"pyproject.toml": PYPROJECT + '[tool.relight]\npreload = "numpy"\nwarm = 1\n'},
        ["pyproject.toml: tool.relight.warm", "pyproject.toml: tool.relight.preload"],
    ),
    ("no package", {"function/__init__.py": None}, ["function/__init__.py: missing"]),
    ("no new", {"function/__init__.py": "def handle(): ...\n"}, ["function/__init__.py: expected `def new():`"]),
    ("a lambda", {"function/__init__.py": "new = lambda: 1\n"}, ["function/__init__.py:1: new must be a plain"]),
    ("a class", {"function/func.py": "class new: ...\n"}, ["function/func.py:1: new must be a plain"]),
    ("a coroutine", {"function/func.py": "async def new(): ...\n"}, ["function/func.py:1: new must be a plain"]),
    ("an alias", {"function/__init__.py": "from .func import make as new\n"}, ["function/__init__.py:1: new must be"]),
    ("overwritten later", {"function/func.py": "def new(): ...\nnew = new()\n"}, ["function/func.py:2: new must be"]),
    (
        "from elsewhere",
        {"function/__init__.py": "from relight.sdk import new\n"},
        ["function/__init__.py:1: new must be imported"],
    ),
    (
        "from nowhere",
        {"function/__init__.py": "from .gone import new\n"},
        ["function/__init__.py:1: new must be imported"],
    ),
    (
        "a circle",
        {"function/func.py": "from . import new\n"},
        ["function/__init__.py: new is imported through more than"],
    ),
    ("a syntax error", {"function/func.py": "def new(:\n"}, ["function/func.py:1: it is not Python"]),
    ("another kind", {"relight.yaml": "kind: Deployment\n"}, ["relight.yaml: kind: expected Service"]),
    ("another name", {"relight.yaml": "metadata: {name: other}\n"}, ["relight.yaml: metadata.name"]),
    (
        "a canary that goes backwards",
        {"relight.yaml": "policy: {canary: {steps: [50, 10]}}\n"},
        ["relight.yaml: policy.canary.steps: expected ascending percents"],
    ),
    ("a stray key", {"relight.yaml": "resources: {}\n"}, ["relight.yaml: resources: unknown key"]),
    (
        "all files at once",
        {
            "func.yaml": FUNC + "gpu: 1\n",
            "pyproject.toml": None,
            "function/__init__.py": None,
            "relight.yaml": "x: 1\n",
        },
        ["func.yaml: gpu", "relight.yaml: x", "pyproject.toml: missing", "function/__init__.py: missing"],
    ),
]


@pytest.mark.parametrize(("files", "says"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_what_is_wrong_is_named(tmp_path: Path, files: dict[str, str | None], says: list[str]) -> None:
    lay(tmp_path, GOOD | files)
    with pytest.raises(Unprocessable) as caught:
        read_project(tmp_path)
    problems = list(map(str, caught.value.problems))
    assert len(problems) == len(says), problems
    for problem, start in zip(problems, says, strict=True):
        assert problem.startswith(start)


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such folder"):
        read_project(tmp_path / "gone")
