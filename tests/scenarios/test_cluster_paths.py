"""The paths of a cluster, on this machine: the local overlay with the very base of all overlays, and canaries."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from kit import get, http, make_function, post
from tables import ROOT

from relight.testing.platform import RunningPlatform

STEP = """
    from relight import sdk

    class Say(sdk.Step):
        def run(self, data, event):
            if {fails}:
                raise sdk.Deadline("too slow")
            return {{"version": {version}}}

    def new():
        return Say()
"""
POLICY = """
policy:
  slo: {latency: 5s}
  canary: {steps: [30], interval: 2s, minRequests: 20, latencyRatio: 20, patience: 60s}
"""


def test_the_local_overlay_is_the_base_of_all_overlays_and_runs(stack: RunningPlatform) -> None:
    done = stack.relight("apply", "-k", str(ROOT / "manifests/overlays/local"), "--wait")
    assert "service.serving.knative.dev/model created" in done.stdout
    document = json.loads((ROOT / "events/samples/dev.relight.document.v1.json").read_text())["data"]
    answer = post(f"{stack.functions}/default/split", document)
    assert (answer.status, answer.json()["document"]) == (200, document["document"])
    assert get(f"{stack.functions}/default/model/v2/models/minilm/ready").status == 200
    assert stack.relight("diff", "-k", str(ROOT / "manifests/overlays/local")).stdout == ""


MEASURED_BY_RETRIEVE = {"relight_index_recall"}
"""Exported once there was something to measure; its own test is among those of the function."""


def test_every_metric_that_is_watched_or_shown_is_one_that_a_function_has(stack: RunningPlatform) -> None:
    stack.relight("apply", "-f", str(ROOT / "manifests/base/split.yaml"), "--wait")
    text = get(f"{stack.functions}/default/split/metrics").data.decode()
    there = set(re.findall(r"^([a-z_]+)(?:\{| )", text, flags=re.MULTILINE))
    folder = ROOT / "manifests/components/monitoring"
    dashboard = json.loads((folder / "dashboard.json").read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    shown += [variable["query"]["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    rules = yaml.safe_load((folder / "alerts.yaml").read_text())["spec"]["groups"]
    shown += [rule["expr"] for group in rules for rule in group["rules"]]
    named = {name for expression in shown for name in re.findall(r"\brelight_[a-z_]+", expression)}
    named -= MEASURED_BY_RETRIEVE
    named |= set(re.findall(r"\brelight_[a-z_]+(?=\{)", (ROOT / "platform/relight/cluster/samples.py").read_text()))
    assert len(named) >= 5
    assert named - there == set()


@contextmanager
def callers(url: str) -> Iterator[list[int]]:
    """Calls all the time; the statuses."""
    statuses: list[int] = []
    ended = threading.Event()

    def call() -> None:
        while not ended.is_set():
            statuses.append(http.request("POST", url, json={}).status)
            ended.wait(0.01)

    threads = [threading.Thread(target=call, name=f"caller-{number}") for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        ended.set()
        for thread in threads:
            thread.join(30)


@pytest.mark.parametrize(("fails", "code", "version"), [(False, 0, 2), (True, 1, 1)], ids=["well", "failing"])
def test_a_canary_is_promoted_or_taken_back_by_what_it_answers(
    stack: RunningPlatform, tmp_path: Path, fails: bool, code: int, version: int
) -> None:
    name = f"say-{version}"
    folder = make_function(tmp_path, name, STEP.format(fails=False, version=1))
    (folder / "relight.yaml").write_text(POLICY)
    stack.relight("deploy", str(folder))
    make_function(tmp_path, name, STEP.format(fails=fails, version=2))
    with callers(f"{stack.functions}/default/{name}") as statuses:
        stack.relight("deploy", str(folder), "--canary", "10", "--tag", "next")
        shown = json.loads(stack.relight("traffic", name, "-o", "json").stdout)
        assert [(one["percent"], one["tag"]) for one in shown] == [(90, None), (10, "next")]
        driven = stack.relight("traffic", name, "--auto", check=False)
        assert driven.returncode == code, driven.stderr
    assert ("promote: " if code == 0 else "rollback: ") in driven.stderr
    assert post(f"{stack.functions}/default/{name}", {}).json() == {"version": version}
    assert 200 in statuses
    assert fails == any(status >= 500 for status in statuses)
    if fails:
        by_tag = post(f"{stack.functions}/default/next-{name}", {})
        assert by_tag.status == 504, "it can still be looked at"
    stack.relight("delete", "ksvc", name)
