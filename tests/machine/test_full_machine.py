"""A machine with fewer slots than are wanted: who waits, who gives way, and that no request is lost by it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kit import kubectl, make_function, post

from relight.net.kube import Kube
from relight.testing.platform import RunningPlatform

SERVING = "serving.knative.dev/v1"
STEP = """
import os
import time

from relight.sdk import Step


class Gpu(Step):
    def load(self):
        time.sleep({load})
        {broken}

    def run(self, data, event):
        time.sleep(data.get("seconds", 0))
        return {{"version": "{version}", "devices": os.environ.get("CUDA_VISIBLE_DEVICES"), "pid": os.getpid()}}


def new():
    return Gpu()
"""


GPU_PATCH = """
spec:
  template:
    spec:
      containers:
        - resources: {limits: {nvidia.com/gpu: "1"}}
"""


def code(version: str, *, load: float = 0.0, broken: str = "") -> str:
    return STEP.format(version=version, load=load, broken=broken or "pass")


def service(name: str, folder: Path, *, gpus: int = 1, version: str = "1", cc: int = 0, **annotations: str) -> str:
    scaling = {f"autoscaling.knative.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    strategy = scaling.pop("autoscaling.knative.dev/strategy", None)
    given = {"relight.dev/source": str(folder), "autoscaling.knative.dev/window": "6s", "x/version": version, **scaling}
    if strategy:
        given["relight.dev/rollout-strategy"] = strategy
    container = {"image": "relight", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    template = {
        "metadata": {"annotations": given},
        "spec": {"containerConcurrency": cc, "containers": [container]},
    }
    return json.dumps(
        {"apiVersion": SERVING, "kind": "Service", "metadata": {"name": name}, "spec": {"template": template}}
    )


def ready(platform: RunningPlatform, name: str, revision: str) -> None:
    latest = f"--for=jsonpath={{.status.latestReadyRevisionName}}={revision}"
    kubectl(platform, "wait", f"ksvc/{name}", latest, "--timeout=40s")
    kubectl(platform, "wait", f"ksvc/{name}", "--for=condition=Ready", "--timeout=40s")


def condition(platform: RunningPlatform, revision: str, kind: str) -> dict[str, Any]:
    found = kubectl(
        platform, "get", "revision", revision, "-o", f"jsonpath={{.status.conditions[?(@.type=='{kind}')]}}"
    )
    return dict(json.loads(found))


def gone(platform: RunningPlatform, name: str) -> None:
    kubectl(platform, "delete", "ksvc", name)
    kubectl(platform, "wait", "pod", "-l", f"serving.knative.dev/service={name}", "--for=delete", "--timeout=40s")


@contextmanager
def called(platform: RunningPlatform, name: str, callers: int = 3) -> Iterator[list[dict[str, Any]]]:
    """Callers that ask all the time; what they are answered. Any answer but 200 fails."""
    answers: list[dict[str, Any]] = []
    stop = threading.Event()

    def caller() -> None:
        while not stop.is_set():
            answer = post(f"{platform.functions}/default/{name}", {"seconds": 0.02})
            assert answer.status == 200, answer.data
            answers.append(answer.json())

    with ThreadPoolExecutor(callers) as pool:
        running = [pool.submit(caller) for _ in range(callers)]
        try:
            yield answers
        finally:
            stop.set()
        for one in running:
            one.result()


def test_no_more_replicas_than_gpus_and_the_rest_queue(machine: RunningPlatform, tmp_path: Path) -> None:
    """Concurrency 1 and a slow load: Knative would ask for six."""
    folder = make_function(tmp_path, "one-each", code("1", load=1.0))
    kubectl(machine, "apply", "-f", "-", stdin=service("one-each", folder, cc=1, initial_scale="1"))
    ready(machine, "one-each", "one-each-00001")
    with Kube.from_kubeconfig(machine.kubeconfig) as kube, ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: post(f"{machine.functions}/default/one-each", {"seconds": 2.0}), range(4)))
        pods = kube.list("v1", "Pod", "default", labels="serving.knative.dev/service=one-each")["items"]
    assert [answer.status for answer in answers] == [200] * 4
    devices = {answer.json()["devices"] for answer in answers}
    assert devices == {"0", "1"}, "each has a GPU of its own"
    assert 1 <= len(pods) <= 2
    assert {pod["metadata"]["annotations"]["relight.dev/devices"] for pod in pods} <= {"0", "1"}
    scaled = machine.log.read_text().split("scale revision=default/one-each-00001")[1:]
    assert max(int(line.split("to=")[1].split()[0]) for line in scaled) == 2
    gone(machine, "one-each")


def test_who_finds_no_room_waits_and_says_for_what(machine: RunningPlatform, tmp_path: Path) -> None:
    first = make_function(tmp_path, "holder", code("1"))
    kubectl(machine, "apply", "-f", "-", stdin=service("holder", first, gpus=2, min_scale="1"))
    ready(machine, "holder", "holder-00001")
    second = make_function(tmp_path, "waiter", code("1"))
    (second / "relight.yaml").write_text(GPU_PATCH)
    waited = machine.relight("deploy", str(second), "--timeout", "6", check=False)
    assert waited.returncode == 6
    assert "waiter: unschedulable since 20" in waited.stderr
    reason = "--for=jsonpath={.status.conditions[?(@.type=='ResourcesAvailable')].reason}=Unschedulable"
    kubectl(machine, "wait", "revision/waiter-00001", reason, "--timeout=20s")
    said = condition(machine, "waiter-00001", "ResourcesAvailable")
    assert said["status"] == "Unknown", "it waits: it has not failed"
    assert "1 Insufficient nvidia.com/gpu" in said["message"]
    assert "held by default/holder-00001" in said["message"]
    assert "FailedScheduling" in kubectl(machine, "describe", "revision", "waiter-00001")
    gone(machine, "holder")
    ready(machine, "waiter", "waiter-00001")
    gone(machine, "waiter")


def test_who_needs_more_than_there_ever_is_has_failed(machine: RunningPlatform, tmp_path: Path) -> None:
    folder = make_function(tmp_path, "greedy", code("1"))
    kubectl(machine, "apply", "-f", "-", stdin=service("greedy", folder, gpus=3))
    kubectl(machine, "wait", "ksvc/greedy", "--for=condition=Ready=False", "--timeout=20s")
    said = condition(machine, "greedy-00001", "Ready")
    assert said["reason"] == "Unschedulable"
    assert "(3 nvidia.com/gpu asked for, 2 on this machine)" in said["message"]
    kubectl(machine, "delete", "ksvc", "greedy")


@pytest.mark.parametrize("strategy", ["surge", "recreate"])
@pytest.mark.parametrize(("gpus", "scale"), [(2, 1), (1, 2)], ids=["one-of-two-slots", "two-replicas"])
def test_a_rollout_without_room_for_two(
    machine: RunningPlatform, tmp_path: Path, strategy: str, gpus: int, scale: int
) -> None:
    """All slots are taken by the old revision, which is called all the time: the new one comes, and nobody notices."""
    name = f"roll-{strategy}-{gpus}"
    given = {"gpus": gpus, "min_scale": str(scale), "strategy": strategy}
    first = service(name, make_function(tmp_path, name, code("1")), **given)
    kubectl(machine, "apply", "-f", "-", stdin=first)
    ready(machine, name, f"{name}-00001")
    with called(machine, name) as answers:
        second = service(name, make_function(tmp_path, name, code("2", load=0.5)), version="2", **given)
        kubectl(machine, "apply", "-f", "-", stdin=second)
        ready(machine, name, f"{name}-00002")
        seen = len(answers)
        many = f"--for=jsonpath={{.status.actualReplicas}}={scale}"
        kubectl(machine, "wait", f"revision/{name}-00002", many, "--timeout=40s")
    versions = [answer["version"] for answer in answers]
    assert {"1", "2"} == set(versions)
    assert "1" not in versions[seen + 10 :], "the old one is not called any more"
    log = machine.log.read_text()
    if strategy == "recreate":
        assert f"revision.gives-way revision=default/{name}-00001 to=default/{name}-00002 keeps=0" in log
    elif scale == 2:
        assert f"revision.gives-way revision=default/{name}-00001 to=default/{name}-00002 keeps=1" in log
    gone(machine, name)


def test_a_broken_revision_takes_nothing_for_good(machine: RunningPlatform, tmp_path: Path) -> None:
    name = "broken-roll"
    given = {"gpus": 2, "min_scale": "1"}
    kubectl(machine, "apply", "-f", "-", stdin=service(name, make_function(tmp_path, name, code("1")), **given))
    ready(machine, name, f"{name}-00001")
    with called(machine, name, 1) as answers:
        broken = make_function(tmp_path, name, code("2", broken="raise RuntimeError('no such weights')"))
        kubectl(machine, "apply", "-f", "-", stdin=service(name, broken, version="2", **given))
        kubectl(machine, "wait", f"revision/{name}-00002", "--for=condition=Ready=False", "--timeout=40s")
        seen = len(answers)
        kubectl(machine, "wait", f"revision/{name}-00001", "--for=jsonpath={.status.actualReplicas}=1", "--timeout=40s")
    assert {answer["version"] for answer in answers} == {"1"}
    assert len(answers) > seen, "it serves again"
    assert "no such weights" in condition(machine, f"{name}-00002", "Ready")["message"]
    gone(machine, name)
