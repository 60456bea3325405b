"""`relight open`, and what `relight call` says while it waits, on a running platform."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit import kubectl, make_function

from relight.testing.platform import RunningPlatform, running_platform

SLOW = """
import time

from relight.sdk import Step


class Slow(Step):
    def load(self):
        time.sleep(2.0)

    def run(self, data, event):
        return {"ok": True}


def new():
    return Slow()
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("home")) as running:
        folder = make_function(tmp_path_factory.mktemp("functions"), "slow", SLOW)
        zero = '{"data":{"allow-zero-initial-scale":"true"}}'
        kubectl(running, "patch", "cm", "config-autoscaler", "-n", "knative-serving", "--type=merge", "-p", zero)
        annotations = {"relight.dev/source": str(folder), "autoscaling.knative.dev/initial-scale": "0"}
        template = {"metadata": {"annotations": annotations}, "spec": {"containers": [{"image": "relight"}]}}
        made: dict[str, Any] = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "slow"}}
        kubectl(running, "apply", "-f", "-", stdin=json.dumps({**made, "spec": {"template": template}}))
        kubectl(running, "wait", "ksvc/slow", "--for=condition=Ready", "--timeout=30s")
        yield running


def test_a_call_from_zero_says_what_it_waits_for(platform: RunningPlatform) -> None:
    done = platform.relight("call", "slow", "-d", "{}")
    assert json.loads(done.stdout) == {"ok": True}
    assert "slow-00001: the function is loading" in done.stderr.splitlines()


def test_a_quick_call_says_nothing(platform: RunningPlatform) -> None:
    done = platform.relight("call", "slow", "-d", "{}")
    assert (json.loads(done.stdout), done.stderr) == ({"ok": True}, "")


def test_open_prints_the_url(platform: RunningPlatform) -> None:
    done = platform.relight("open", "slow", "--path", "/metrics")
    assert done.stdout == f"{platform.functions}/default/slow/metrics\n"
    assert platform.relight("open", "none", check=False).returncode == 4


def test_open_starts_the_browser_on_a_terminal(platform: RunningPlatform, tmp_path: Path) -> None:
    """$BROWSER is what Python's webbrowser asks; a pseudo terminal makes the command think of a person."""
    browser = tmp_path / "browser"
    browser.write_text(f"#!/bin/sh\necho $1 > {tmp_path}/opened\n")
    browser.chmod(0o700)
    code = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"
    command = [sys.executable, "-c", code, sys.executable, "-m", "relight", "open", "slow"]
    environ = {**platform.environ, "BROWSER": f"{browser} %s"}
    subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=True)
    assert (tmp_path / "opened").read_text() == f"{platform.functions}/default/slow/\n"


def test_what_commands_print_for_programs(platform: RunningPlatform) -> None:
    status = yaml.safe_load(platform.relight("status", "-o", "yaml").stdout)
    assert status == json.loads(platform.relight("status", "-o", "json").stdout) | {"uptime": status["uptime"]}
    assert status["functions"] == platform.functions
    assert status["resources"]["cpu"].endswith("000m")
    assert status["limits"] in ("cgroup v1", "cgroup v2", "rlimit")
    assert yaml.safe_load(platform.relight("status", "slow", "-o", "yaml").stdout)["ready"] == "True"
    described = yaml.safe_load(platform.relight("describe", "ksvc", "slow", "-o", "yaml").stdout)
    assert described["object"]["metadata"]["name"] == "slow"
