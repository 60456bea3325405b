"""From zero to one, to several, and back: what callers see and what the objects say."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kit import http, make_function, post

from relight.net.kube import Kube
from relight.testing.platform import RunningPlatform

SLOW = """
import os
import time

from relight.sdk import Step


class Slow(Step):
    def run(self, data, event):
        time.sleep(data.get("seconds", 0))
        return {"pid": os.getpid()}


def new():
    return Slow()
"""


def deploy(stack: RunningPlatform, folder: Path) -> str:
    return str(json.loads(stack.relight("deploy", str(folder), "-o", "json").stdout)["url"])


def wait_for_replicas(stack: RunningPlatform, revision: str, want: int, seconds: float = 40.0) -> dict[str, Any]:
    """The Revision once it has so many ready replicas."""
    with Kube.from_kubeconfig(stack.kubeconfig) as kube:
        for _, found in kube.watch("serving.knative.dev/v1", "Revision", "default", name=revision, timeout=seconds):
            if found.get("status", {}).get("actualReplicas", 0) == want:
                return found
    raise AssertionError(f"{revision} did not come to {want} replicas in {seconds} s:\n{stack.tail()}")


def pods(stack: RunningPlatform, name: str) -> list[dict[str, Any]]:
    items = json.loads(stack.relight("get", "pods", "-o", "json").stdout)["items"]
    return [pod for pod in items if pod["metadata"]["labels"]["serving.knative.dev/service"] == name]


def cold_starts(stack: RunningPlatform, revision: str) -> list[dict[str, Any]]:
    with Kube.from_kubeconfig(stack.kubeconfig) as kube:
        events = kube.list("v1", "Event", "default")["items"]
    return [
        json.loads(event["metadata"]["annotations"]["relight.dev/cold-start"])
        for event in events
        if event["reason"] == "ColdStart" and event["involvedObject"]["name"] == revision
    ]


def test_to_zero_and_back_with_one_wake(stack: RunningPlatform, tmp_path: Path) -> None:
    url = deploy(stack, make_function(tmp_path, "sleeper", SLOW))
    wait_for_replicas(stack, "sleeper-00001", 0)
    assert not pods(stack, "sleeper")

    # Twenty at once find nothing running: all are held, one start answers all.
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: post(url, {}), range(20)))
    assert [answer.status for answer in answers] == [200] * 20
    assert len(cold_starts(stack, "sleeper-00001")) == 1


def test_every_cold_start_names_its_phases_and_they_add_up(stack: RunningPlatform, tmp_path: Path) -> None:
    url = deploy(stack, make_function(tmp_path, "phases", SLOW))
    wait_for_replicas(stack, "phases-00001", 0)
    begun = time.monotonic()
    answer = post(url, {}, **{"relight-timing": "1"})
    assert answer.status == 200
    whole = time.monotonic() - begun
    said = answer.headers.getlist("server-timing")[-1]
    told = {name: float(ms) / 1000 for name, ms in re.findall(r"(\w+);dur=([\d.]+)", said)}
    (cold,) = cold_starts(stack, "phases-00001")
    assert set(cold["phases"]) == {"hold", "fork", "import", "fetch", "load", "warmup", "first_answer"}
    assert all(seconds >= 0 for seconds in cold["phases"].values())
    assert abs(sum(cold["phases"].values()) - cold["total"]) <= 0.05 * cold["total"]
    assert cold["total"] <= whole
    assert "coldstart revision=default/phases-00001" in stack.log.read_text()
    assert told.keys() == {*cold["phases"], "total"}
    assert told["load"] == pytest.approx(cold["phases"]["load"], abs=1e-3)
    assert abs(sum(told.values()) - 2 * told["total"]) <= 0.05 * told["total"]
    metrics = http.request("GET", f"{stack.functions}/metrics").data.decode()
    labels = 'function="default/phases",phase="load",revision="default/phases-00001"'
    assert f"relight_cold_start_seconds_count{{{labels}}} 1.0" in metrics
    for kind, name in (("revision", "phases-00001"), ("ksvc", "phases")):
        shown = stack.relight("describe", kind, name).stdout
        assert re.search(r"cold starts \(ms\):\n.*HOLD +FORK +IMPORT +FETCH +LOAD +WARMUP +FIRST_ANSWER", shown), shown


def test_more_load_more_replicas(stack: RunningPlatform, tmp_path: Path) -> None:
    folder = make_function(tmp_path, "busy", SLOW, target=1, max_scale=3)
    url = deploy(stack, folder)
    stop, several = threading.Event(), threading.Event()
    seen: set[int] = set()

    def caller(_: int) -> None:
        while not stop.is_set():
            answer = post(url, {"seconds": 0.3})
            assert answer.status == 200, answer.data
            seen.add(answer.json()["pid"])
            if len(seen) == 3:
                several.set()

    with ThreadPoolExecutor(6) as pool:
        callers = [pool.submit(caller, number) for number in range(6)]
        try:
            wait_for_replicas(stack, "busy-00001", 3)  # max-scale holds it there
            assert several.wait(20), f"only {seen} answered"
        finally:
            stop.set()
        for one in callers:
            one.result()
    wait_for_replicas(stack, "busy-00001", 0)


def test_a_killed_replica_is_replaced(stack: RunningPlatform, tmp_path: Path) -> None:
    url = deploy(stack, make_function(tmp_path, "mortal", SLOW))
    pid = post(url, {}).json()["pid"]
    (pod,) = [one["metadata"]["name"] for one in pods(stack, "mortal")]
    with Kube.from_kubeconfig(stack.kubeconfig) as kube:
        changes = kube.watch("v1", "Pod", "default", name=pod, timeout=20)
        assert next(changes)[0] == "ADDED"
        os.kill(pid, signal.SIGKILL)
        assert any(kind == "DELETED" for kind, _ in changes)
    # Whoever calls from now on meets the next one; a call that was under way would have been told 502.
    answer = post(url, {})
    assert answer.status == 200, answer.data
    assert answer.json()["pid"] != pid


def test_min_scale_on_the_live_revision(stack: RunningPlatform, tmp_path: Path) -> None:
    """A Revision's annotations change its scale without a new revision, as on a cluster."""
    deploy(stack, make_function(tmp_path, "hot", SLOW))
    wait_for_replicas(stack, "hot-00001", 0)

    def annotate(value: str | None) -> None:
        change = {"metadata": {"annotations": {"autoscaling.knative.dev/min-scale": value}}}
        with Kube.from_kubeconfig(stack.kubeconfig) as kube:
            kube.patch("serving.knative.dev/v1", "Revision", "hot-00001", change, "default")

    annotate("1")
    wait_for_replicas(stack, "hot-00001", 1)
    annotate(None)
    wait_for_replicas(stack, "hot-00001", 0)
    revisions = json.loads(stack.relight("get", "revisions", "-o", "json").stdout)["items"]
    assert [one["metadata"]["name"] for one in revisions if one["metadata"]["name"].startswith("hot-")] == ["hot-00001"]


def test_a_request_in_flight_survives_scaling_down_and_a_new_revision(stack: RunningPlatform, tmp_path: Path) -> None:
    folder = make_function(tmp_path, "patient", SLOW)
    url = deploy(stack, folder)
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(post, url, {"seconds": 4})
        make_function(tmp_path, "patient", SLOW.replace('"pid"', '"new"'))
        deploy(stack, folder)
        assert "new" in post(url, {}).json()
        answer = long.result()
    assert answer.status == 200
    assert "pid" in answer.json()
