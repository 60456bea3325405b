"""The house itself: what must stay true of the layout."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from tables import ROOT


def test_the_platform_folder_does_not_shadow_the_standard_library() -> None:
    """With an ``__init__.py`` in it, ``import platform`` from the checkout would find it, and uuid and pytest die."""
    assert not (ROOT / "platform" / "__init__.py").exists()
    code = "import platform, uuid; print(platform.python_version(), uuid.uuid4())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


RELIGHT = ROOT / "platform" / "relight"
PACKAGES = sorted(path for path in RELIGHT.rglob("__init__.py") if "templates" not in path.parts)


@pytest.mark.parametrize("path", PACKAGES, ids=[path.parent.name for path in PACKAGES])
def test_a_package_says_what_may_live_in_it_and_nothing_else(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), f"{path} has no docstring"
    assert len(tree.body) == 1, f"{path} holds more than its docstring"


def test_the_root_project_is_called_function() -> None:
    """Knative's scaffolding installs ``function @ {root}/f``."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "function"
    for folder in (ROOT / "functions").iterdir():
        own = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        assert own["name"] == "function", folder
        # A stranger's package of that name exists on the index.
        assert not any(dependency.split("[")[0].strip() == "function" for dependency in own["dependencies"])
