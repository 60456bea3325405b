"""Scaling by what replicas use (``class: hpa``): the decisions as a table, and the driver over real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import pytest

from relight.decide import traces, utilization
from relight.decide.defaults import ClusterDefaults
from relight.decide.scaling import RevisionScaling
from relight.decide.utilization import PERIOD, Wishes
from relight.local.serving.usage import CpuMeter, cpu_seconds, resident_bytes

HPA = {"autoscaling.knative.dev/class": "hpa.autoscaling.knative.dev"}


def spec(**annotations: str) -> RevisionScaling:
    given = HPA | {f"autoscaling.knative.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
    return RevisionScaling.from_annotations(given, 0, ClusterDefaults())


def test_what_it_aims_at() -> None:
    assert (spec().metric, spec().target, spec().min_scale) == ("cpu", 80.0, 1)
    assert (spec(metric="memory", target="200").target, spec(min_scale="3").min_scale) == (200.0, 3)


@pytest.mark.parametrize(
    ("given", "wishes", "replicas", "average", "wanted"),
    [
        pytest.param({}, Wishes(), 2, 80.0, 2, id="on-target"),
        pytest.param({}, Wishes(), 2, 87.9, 2, id="a-tenth-above-is-on-target"),
        pytest.param({}, Wishes(), 2, 89.0, 3, id="more-is-not"),
        pytest.param({}, Wishes(), 2, 72.1, 2, id="a-tenth-below-is-on-target"),
        pytest.param({}, Wishes(), 4, 40.0, 2, id="half"),
        pytest.param({}, Wishes(), 1, 0.0, 1, id="never-zero"),
        pytest.param({}, Wishes(), 3, None, 3, id="nobody-knows"),
        pytest.param({"max_scale": "3"}, Wishes(), 2, 400.0, 3, id="the-maximum"),
        pytest.param({"min_scale": "2"}, Wishes(), 3, 1.0, 2, id="the-minimum"),
        pytest.param({}, Wishes(), 1, 8000.0, 5, id="four-more-at-most"),
        pytest.param({}, Wishes(), 10, 8000.0, 20, id="or-twice-as-many"),
        pytest.param({}, Wishes(added=((99.0, 4),)), 5, 8000.0, 5, id="not-again-in-the-same-period"),
        pytest.param({}, Wishes(added=((80.0, 4),)), 5, 8000.0, 10, id="again-in-the-next"),
        pytest.param({}, Wishes(wanted=((0.0, 4),)), 4, 20.0, 4, id="not-down-for-five-minutes"),
        pytest.param({}, Wishes(wanted=((-201.0, 4),)), 4, 20.0, 1, id="then-down"),
        pytest.param({}, Wishes(wanted=((0.0, 3),)), 4, 20.0, 3, id="down-to-the-most-of-them"),
        pytest.param({"metric": "memory", "target": "100"}, Wishes(), 2, 150.0, 3, id="memory"),
    ],
)
def test_decisions(given: dict[str, str], wishes: Wishes, replicas: int, average: float | None, wanted: int) -> None:
    found, after = utilization.decide(spec(**given), wishes, replicas, average, 100.0)
    assert found == wanted
    record = traces.utilization_document("r", 100.0, spec(**given), wishes, replicas, average, found, after)
    assert traces.differences(record) == []
    changed: dict[str, Any] = {**record, "decision": {"desired": found + 1}}
    (difference,) = traces.differences(changed)
    assert "decision.desired" in difference


def test_a_walk_up_and_down() -> None:
    wishes, replicas, walk = Wishes(), 1, []
    for step in range(40):
        average = 300.0 / replicas if step < 4 else 0.0
        replicas, wishes = utilization.decide(spec(), wishes, replicas, average, step * PERIOD)
        walk.append(replicas)
    assert walk[:4] == [4, 4, 4, 4]
    assert set(walk[4:23]) == {4}, "the most of the last five minutes stays"
    assert walk[-1] == 1


def test_what_a_process_uses() -> None:
    burns = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        meter = CpuMeter()
        assert meter.cores([burns.pid], time.monotonic()) == [], "one look is none"
        deadline = time.monotonic() + 10
        before = cpu_seconds(burns.pid)
        while (cpu_seconds(burns.pid) or 0.0) - (before or 0.0) < 0.1:
            assert time.monotonic() < deadline
        (cores,) = meter.cores([burns.pid, 2**22 + 1], time.monotonic())
        assert 0 < cores <= 1.5
        assert (resident_bytes(burns.pid) or 0) > 2**20
    finally:
        burns.kill()
        burns.wait()
    assert cpu_seconds(burns.pid) is None
    assert meter.cores([os.getpid()], time.monotonic()) == []
