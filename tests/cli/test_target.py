"""Which cluster a command talks to."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from relight.base.errors import NotFound
from relight.base.settings import Settings
from relight.cli.exits import NotRunning
from relight.cli.state import process_start
from relight.cli.target import find_target


def settings(folder: Path, *, runs: bool, **environ: str) -> Settings:
    """Settings of a home on which a platform runs (this very process) or not."""
    home = folder / "home"
    home.mkdir()
    (home / "kubeconfig").write_text("")
    if runs:
        status = {"pid": os.getpid(), "start_time": process_start(os.getpid()), "kubeconfig": str(home / "kubeconfig")}
        status |= {name: f"http://{name}" for name in ("api", "functions", "broker", "repository")}
        (home / "status.json").write_text(json.dumps(status))
    return Settings.from_environ({"RELIGHT_HOME": str(home), **environ})


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of kubeconfigs a and b, and a home folder with kubectl's default one."""
    for name in ("a", "b", "user/.kube/config"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    return tmp_path


def test_what_is_told_wins(configs: Path) -> None:
    target = find_target(configs / "a", "c", settings(configs, runs=True, RELIGHT_KUBECONFIG=str(configs / "b")))
    assert (target.kubeconfig, target.context, target.platform) == (configs / "a", "c", None)


def test_then_relights_own_variable(configs: Path) -> None:
    target = find_target(None, None, settings(configs, runs=True, RELIGHT_KUBECONFIG=str(configs / "b")))
    assert (target.kubeconfig, target.platform) == (configs / "b", None)


def test_then_local_mode_if_it_runs(configs: Path) -> None:
    target = find_target(None, None, settings(configs, runs=True, KUBECONFIG=str(configs / "b")))
    assert target.kubeconfig == configs / "home" / "kubeconfig"
    assert target.platform is not None


def test_local_mode_by_its_kubeconfig_is_local_mode(configs: Path) -> None:
    target = find_target(configs / "home" / "kubeconfig", None, settings(configs, runs=True))
    assert target.platform is not None


def test_then_kubectls_variable(configs: Path) -> None:
    target = find_target(None, None, settings(configs, runs=False, KUBECONFIG=f"{configs}/gone:{configs}/b"))
    assert target.kubeconfig == configs / "b"


def test_then_kubectls_file(configs: Path) -> None:
    target = find_target(None, None, settings(configs, runs=False))
    assert target.kubeconfig == configs / "user" / ".kube" / "config"


def test_nothing_at_all(configs: Path) -> None:
    (configs / "user" / ".kube" / "config").unlink()
    with pytest.raises(NotRunning, match="there is no kubeconfig"):
        find_target(None, None, settings(configs, runs=False))


def test_a_file_that_is_named_must_be_there(configs: Path) -> None:
    with pytest.raises(NotFound, match="gone"):
        find_target(None, None, settings(configs, runs=True, RELIGHT_KUBECONFIG=str(configs / "gone")))
