"""The autoscaler alive: a platform's own log of its decisions is decided again, and no rule can be broken unnoticed."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kit import kubectl, make_function, manifest, post
from tables import ROOT

from relight.decide import scaling, traces
from relight.decide.last_step import Activity, ScaleTarget, last_step
from relight.decide.scaling import Observation, RevisionScaling, ScalerState
from relight.testing.platform import RunningPlatform, running_platform

SLEEPS = """
import time

from relight.sdk import Step


class Sleeps(Step):
    def run(self, data, event):
        time.sleep(data["seconds"])
        return {}


def new():
    return Sleeps()
"""

ANNOTATIONS = 'autoscaling.knative.dev/window: 6s, autoscaling.knative.dev/target: "1"'
TO_ZERO = 20
"""Seconds in which a revision with a window of 6 s is at zero: window, two decisions, and a machine that is busy."""


def story(platform: RunningPlatform, folder: Path) -> None:
    """Four requests at once, some times, then nobody: several replicas come, and all of them go."""
    made = make_function(folder, "busy", SLEEPS)
    kubectl(platform, "apply", "-f", "-", stdin=manifest("busy", made, ANNOTATIONS))
    kubectl(platform, "wait", "ksvc/busy", "--for=condition=Ready", "--timeout=60s")
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            answers = pool.map(lambda _: post(f"{platform.functions}/default/busy", {"seconds": 1.0}), range(4))
            assert {answer.status for answer in answers} == {200}
    zero = "--for=jsonpath={.status.actualReplicas}=0"
    kubectl(platform, "wait", "revision/busy-00001", zero, f"--timeout={TO_ZERO}s")


def records(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture(scope="module")
def decisions(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    home = tmp_path_factory.mktemp("home")
    log = home / "decisions.jsonl"
    with running_platform(home, arguments=("--trace-decisions", str(log))) as platform:
        story(platform, home)
    return records(log)


def test_the_log_is_decided_again_alike(decisions: list[dict[str, Any]]) -> None:
    wanted = {one["decision"]["desired"] for one in decisions}
    assert {0, 1} <= wanted
    assert max(wanted) >= 3, "the load was felt"
    assert any(one["decision"]["panic_since"] is not None for one in decisions)
    assert [difference for one in decisions for difference in traces.differences(one)] == []


def test_a_changed_record_is_noticed(decisions: list[dict[str, Any]]) -> None:
    one = next(record for record in decisions if record["decision"]["valid"])
    changed = {**one, "decision": {**one["decision"], "desired": one["decision"]["desired"] + 1}}
    (difference,) = traces.differences(changed)
    assert "decision.desired: was" in difference
    with pytest.raises(ValueError, match="format 1, got 2"):
        traces.differences({**one, "format": 2})


def test_a_state_with_a_delay_survives_being_written_down() -> None:
    """The story above has no scale-down delay, whose state is a window of its own."""
    spec = RevisionScaling(scale_down_delay=10.0)
    _, state = scaling.decide(spec, ScalerState(), Observation(3, 300.0, 300.0), 100.0)
    seen = Observation(3, 0.0, 0.0)
    decision, after = scaling.decide(spec, state, seen, 102.0)
    target = ScaleTarget(3, 3, Activity.ACTIVE, 0.0)
    step = last_step(spec, target, decision.desired, 102.0)
    record = traces.document("r", 102.0, spec, state, seen, decision, after, target, step)
    assert traces.differences(json.loads(json.dumps(record))) == []
    assert dataclasses.asdict(after)["delay"] is not None


BROKEN = {
    "panic-begins-at-the-threshold": ("scaling", "/ capacity >= spec.panic_threshold:", "/ capacity > 99:"),
    "what-is-wanted-is-rounded-up": (
        "scaling",
        "panic_pods = math.ceil(seen.panic / spec.target)",
        "panic_pods = math.floor(seen.panic / spec.target)",
    ),
    "zero-after-the-stable-window": ("last_step", "if lasted < spec.stable_window:", "if lasted < 1e9:"),
}
"""Module of the core, a line of it, and what stands there in a broken copy."""


def broken_copy(folder: Path, rule: str) -> Path:
    """The package as it is but for one line, on a path of its own."""
    module, line, instead = BROKEN[rule]
    shutil.copytree(ROOT / "platform/relight", folder / "relight", ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "relight/decide" / f"{module}.py"
    source = path.read_text()
    assert source.count(line) == 1, "the rule is written otherwise now"
    path.write_text(source.replace(line, instead))
    return folder


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_decides_the_log_otherwise(decisions: list[dict[str, Any]], rule: str, tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    log.write_text("\n".join(map(json.dumps, decisions)))
    check = (
        "import json, sys; from relight.decide import traces\n"
        "print(sum(bool(traces.differences(json.loads(line))) for line in open(sys.argv[1])))"
    )
    environ = {"PYTHONPATH": str(broken_copy(tmp_path, rule)), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", check, str(log)], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0, "nobody noticed"


def test_a_platform_with_a_broken_rule_fails_the_story(tmp_path: Path) -> None:
    """With a core that never goes to zero, the story above fails, and the log of that platform gives it away."""
    log = tmp_path / "decisions.jsonl"
    environ = {"PYTHONPATH": str(broken_copy(tmp_path / "copy", "zero-after-the-stable-window"))}
    given = ("--trace-decisions", str(log))
    with (
        running_platform(tmp_path / "home", environ=environ, arguments=given) as platform,
        pytest.raises(AssertionError, match="timed out waiting"),
    ):
        story(platform, tmp_path)
    assert any(traces.differences(one) for one in records(log))
