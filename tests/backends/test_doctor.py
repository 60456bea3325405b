"""``relight doctor``: it looks, changes nothing, and says what it cannot know."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from relight.backends import cpus, machine
from relight.cli.main import main


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *arguments])
    return int(ended.value.code or 0), capsys.readouterr().out


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RELIGHT_HOME", str(tmp_path / "home"))
    for name in ("API", "FUNCTIONS", "BROKER"):
        monkeypatch.setenv(f"RELIGHT_{name}_PORT", "0")
    return tmp_path / "home"


def found(capsys: pytest.CaptureFixture[str]) -> dict[tuple[str, str], dict[str, Any]]:
    code, out = run(["-o", "json"], capsys)
    assert code == 0
    return {(item["topic"], item["name"]): item for item in json.loads(out)}


def test_it_says_what_is_there_and_what_is_not_verified(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_name = found(capsys)
    assert by_name["relight", "Python"]["state"] == "ok"
    assert by_name["models", "ONNX Runtime"]["detail"].count("CPUExecutionProvider") == 1
    assert f"{cpus.usable()} threads" in by_name["processor", "processors"]["detail"]
    assert by_name["models", "CUDAExecutionProvider"]["state"] == "not verified"
    assert {name for topic, name in by_name if topic == "limits"} == {"CUDA", "TensorRT", "MIG", "images"}
    assert by_name["folders", "home"]["detail"].startswith(f"{home} (to be made)")
    assert not home.exists(), "it looks, and makes nothing"
    code, out = run([], capsys)
    assert code == 0
    assert "not verified here" in out


def test_a_port_that_is_taken_is_a_problem(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("RELIGHT_API_PORT", str(taken.getsockname()[1]))
        by_name = found(capsys)
    assert by_name["ports", "api"]["state"] == "problem"
    assert "in use" in by_name["ports", "api"]["detail"]
    assert by_name["ports", "broker"]["detail"] == "any free one"


DRIVERS = {
    "answers": ("echo '0, NVIDIA X, 80 GiB, 1.2, Disabled'", "ok", "NVIDIA X"),
    "fails": ("exit 9", "problem", "nvidia-smi does not answer"),
    "lists none": ("true", "missing", "lists none"),
}


@pytest.mark.parametrize(("script", "state", "detail"), DRIVERS.values(), ids=DRIVERS)
def test_a_driver_in_any_state(
    script: str, state: str, detail: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    gpu = next(finding for finding in machine.findings() if finding.topic == "gpu")
    assert gpu.state == state
    assert detail in gpu.detail


def test_what_it_lists_as_unverified_is_in_the_limits() -> None:
    text = (Path(__file__).parents[2] / "docs" / "limits.md").read_text()
    for name in ("CUDA in ONNX Runtime", "CUDA in PyTorch", "TensorRT plans", "MIG", "Container images"):
        assert f"| {name}" in text
