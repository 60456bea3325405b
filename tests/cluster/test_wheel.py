"""relight's wheel in a function's folder, made from a checkout and from an installation."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from relight.base.errors import NotFound, PlatformError
from relight.cluster import wheel


def install(path: Path, target: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    done = subprocess.run([*pip, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def names(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as opened:
        assert opened.testzip() is None
        return sorted(opened.namelist())


@pytest.fixture(scope="module")
def laid(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The wheel in two folders."""
    folders = [tmp_path_factory.mktemp(name) for name in ("a", "b")]
    paths = wheel.lay_wheels(folders)
    assert [path.parent.parent for path in paths] == folders
    return paths


def test_several_folders_get_the_same_wheel(laid: list[Path]) -> None:
    assert laid[0].name == laid[1].name
    assert laid[0].read_bytes() == laid[1].read_bytes()
    assert "relight/sdk.py" in names(laid[0])


def test_a_wheel_is_made_again_from_what_it_was_installed_as(laid: list[Path], tmp_path: Path) -> None:
    built = laid[0]
    install(built, tmp_path / "site")
    installed = Distribution.at(next((tmp_path / "site").glob("relight-*.dist-info")))
    packed = wheel._packed(installed, tmp_path)
    assert packed.name == built.name
    assert names(packed) == names(built)
    first = packed.read_bytes()
    assert wheel._packed(installed, tmp_path).read_bytes() == first, "the same files make the same wheel"
    install(packed, tmp_path / "again")
    code = "from relight import sdk; print(sdk.__file__)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env={"PYTHONPATH": str(tmp_path / "again")}, capture_output=True, text=True
    )
    assert done.stdout.strip() == str(tmp_path / "again" / "relight" / "sdk.py")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such folder"):
        wheel.lay_wheels([tmp_path, tmp_path / "gone"])
    assert list(tmp_path.iterdir()) == [], "none of them gets one"


def test_what_pip_cannot_make_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken"
    (broken / "relight").mkdir(parents=True)
    (broken / "pyproject.toml").write_text("[project]\nversion = 1\n")
    (broken / "relight" / "__init__.py").write_text("")
    monkeypatch.setattr("relight.__file__", str(broken / "relight" / "__init__.py"))
    (tmp_path / "hello").mkdir()
    with pytest.raises(PlatformError, match=r"'name'"):
        wheel.lay_wheel(tmp_path / "hello")
    assert list((tmp_path / "hello").iterdir()) == []


SAID = {
    "a note at the end": ("x\nERROR: Failed to build\nnote: not pip\n", "Failed to build"),
    "below": ("x\n  ValueError: no name\n  [end of output]\nnote: not pip\n", "ValueError: no name"),
    "several": ("  ERROR: first\nERROR: second", "first"),
    "no error": ("something\n\n", "something"),
    "silence": ("", "no reason given"),
}


@pytest.mark.parametrize(("said", "reason"), SAID.values(), ids=SAID)
def test_the_line_that_pip_means(said: str, reason: str) -> None:
    assert wheel._reason(said) == reason
