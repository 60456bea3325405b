"""Replicas as their pod spec wants them: probes of each kind, limits that hold, and why each one ended."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kit import http, kubectl, make_function, post

from relight.net.kube import Kube
from relight.testing.platform import RunningPlatform

STEP = """
import os
import shutil
import subprocess
import sys

from relight.sdk import Step


class Eater(Step):
    def run(self, data, event):
        kept = bytearray(data.get("bytes", 0))
        return {"pid": os.getpid(), "kept": len(kept), "threads": os.environ.get("OMP_NUM_THREADS")}


def new():
    return Eater()
"""


LIMITS = {"memory": "400Mi", "cpu": "1500m"}
KEPT = {"autoscaling.knative.dev/min-scale": "1"}


def apply(
    platform: RunningPlatform, name: str, folder: Path, annotations: dict[str, str] = KEPT, **container: Any
) -> None:
    given = {"relight.dev/source": str(folder), **annotations}
    template = {"metadata": {"annotations": given}, "spec": {"containers": [{"image": "relight", **container}]}}
    made = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": name}}
    kubectl(platform, "apply", "-f", "-", stdin=json.dumps({**made, "spec": {"template": template}}))


def wait_ready(platform: RunningPlatform, name: str) -> None:
    kubectl(platform, "wait", f"ksvc/{name}", "--for=condition=Ready", "--timeout=40s")


def until_replaced(platform: RunningPlatform, name: str, pid: int) -> int:
    """The pid of the replica that came for another one, once it answers."""
    with Kube.from_kubeconfig(platform.kubeconfig) as kube:
        for _, found in kube.watch("serving.knative.dev/v1", "Revision", "default", name=f"{name}-00001", timeout=30):
            if found["status"].get("actualReplicas") == 1:
                answer = post(f"{platform.functions}/default/{name}", {})
                if answer.status == 200 and answer.json()["pid"] != pid:
                    return int(answer.json()["pid"])
    raise AssertionError(f"{name} still has its old replica:\n{platform.tail()}")


def events(platform: RunningPlatform, revision: str) -> dict[str, str]:
    with Kube.from_kubeconfig(platform.kubeconfig) as kube:
        found = kube.list("v1", "Event", "default")["items"]
    return {one["reason"]: one["message"] for one in found if one["involvedObject"]["name"] == revision}


@pytest.mark.parametrize("how", ["cgroup", "rlimit"])
def test_a_replica_that_outgrows_its_memory_is_ended_and_replaced(
    machine: RunningPlatform, tmp_path: Path, how: str, request: pytest.FixtureRequest
) -> None:
    platform = machine if how == "cgroup" else request.getfixturevalue("bounded")
    apply(platform, "eater", make_function(tmp_path, "eater", STEP), resources={"limits": LIMITS})
    wait_ready(platform, "eater")
    url = f"{platform.functions}/default/eater"
    answered = post(url, {"bytes": 10 * 2**20}).json()
    assert answered["threads"] == "2", "as many as the limit has cores"
    pid = answered["pid"]
    (pod,) = json.loads(kubectl(platform, "get", "pods", "-o", "json"))["items"]
    said = pod["metadata"]["annotations"]["relight.dev/limits"]
    assert said == json.loads(platform.relight("status", "-o", "json").stdout)["limits"]
    assert said == "rlimit" or how == "cgroup"
    answer = post(url, {"bytes": 600 * 2**20})
    assert answer.status >= 500, "no answer of that size could be made"
    if said != "rlimit":
        # The kernel ended the process. (Where an allocation fails instead, the function says 500 and lives on.)
        until_replaced(platform, "eater", pid)
        assert "out of memory, it needed more than its limit" in events(platform, "eater-00001")["OOMKilled"]
        metrics = http.request("GET", f"{platform.functions}/metrics").data.decode()
        assert 'relight_replica_exits_total{reason="OOMKilled",revision="default/eater-00001"} 1.0' in metrics
    assert post(url, {}).status == 200
    kubectl(platform, "delete", "ksvc", "eater")
    kubectl(platform, "wait", "pod", "--all", "--for=delete", "--timeout=40s")


def test_a_readiness_probe_decides_when_it_is_ready(machine: RunningPlatform, tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    probe = {"exec": {"command": ["test", "-e", str(sign)]}, "periodSeconds": 1, "failureThreshold": 1}
    apply(machine, "careful", make_function(tmp_path, "careful", STEP), readinessProbe=probe)
    pods = ("pod", "-l", "serving.knative.dev/service=careful")
    kubectl(machine, "wait", *pods, "--for=create", "--timeout=30s")
    kubectl(machine, "wait", "ksvc/careful", "--for=condition=Ready", "--timeout=1s", code=1)
    sign.touch()
    wait_ready(machine, "careful")
    assert post(f"{machine.functions}/default/careful", {}).status == 200
    sign.unlink()
    none = "--for=jsonpath={.status.actualReplicas}=0"
    kubectl(machine, "wait", "revision/careful-00001", none, "--timeout=20s")
    sign.touch()
    assert post(f"{machine.functions}/default/careful", {}).status == 200, "held until it was ready again"
    kubectl(machine, "delete", "ksvc", "careful")


def test_a_liveness_probe_replaces_what_is_sick(machine: RunningPlatform, tmp_path: Path) -> None:
    sick = tmp_path / "sick"
    probe = {"exec": {"command": ["test", "!", "-e", str(sick)]}, "periodSeconds": 1, "failureThreshold": 2}
    http_probe = {"httpGet": {"path": "/health/readiness", "port": 8080}}
    ports = [{"containerPort": 8080}]
    folder = make_function(tmp_path, "ailing", STEP)
    apply(machine, "ailing", folder, livenessProbe=probe, readinessProbe=http_probe, ports=ports)
    wait_ready(machine, "ailing")
    pid = post(f"{machine.functions}/default/ailing", {}).json()["pid"]
    sick.touch()
    with Kube.from_kubeconfig(machine.kubeconfig) as kube:
        for _, event in kube.watch("v1", "Event", "default", timeout=30):
            if event["reason"] == "Unhealthy":
                break
        else:
            raise AssertionError(machine.tail())
    sick.unlink()
    assert until_replaced(machine, "ailing", pid)
    assert "liveness probe failed: test exited with code 1" in events(machine, "ailing-00001")["Unhealthy"]
    kubectl(machine, "delete", "ksvc", "ailing")


def test_the_reason_of_an_eviction(machine: RunningPlatform, tmp_path: Path) -> None:
    apply(machine, "evicted", make_function(tmp_path, "evicted", STEP))
    wait_ready(machine, "evicted")
    pid = post(f"{machine.functions}/default/evicted", {}).json()["pid"]
    kubectl(machine, "delete", "pod", "-l", "serving.knative.dev/service=evicted")
    assert until_replaced(machine, "evicted", pid)
    assert "its Pod was deleted" in events(machine, "evicted-00001")["Evicted"]
    assert not os.path.exists(f"/proc/{pid}")
    kubectl(machine, "delete", "ksvc", "evicted")


def test_scaling_by_what_replicas_use(machine: RunningPlatform, tmp_path: Path) -> None:
    """Every replica uses more than one MiB, so there are as many as there may be; and never none."""
    hpa = {"class": "hpa.autoscaling.knative.dev", "metric": "memory", "target": "1", "max-scale": "2"}
    annotations = {f"autoscaling.knative.dev/{name}": value for name, value in hpa.items()}
    apply(machine, "used", make_function(tmp_path, "used", STEP), annotations)
    wait_ready(machine, "used")
    kubectl(machine, "wait", "revision/used-00001", "--for=jsonpath={.status.actualReplicas}=2", "--timeout=30s")
    autoscaler = json.loads(kubectl(machine, "get", "kpa", "used-00001", "-o", "json"))
    assert autoscaler["status"]["desiredScale"] == 2
    kubectl(machine, "delete", "ksvc", "used")


def followed(platform: RunningPlatform, *arguments: str) -> subprocess.Popen[str]:
    """A kubectl that follows something, until its end or ours."""
    program = shutil.which("kubectl", path=str(Path(sys.executable).parent))
    assert program is not None
    environ = {"KUBECONFIG": str(platform.kubeconfig), "HOME": str(platform.home), "PATH": os.environ["PATH"]}
    return subprocess.Popen([program, *arguments], env=environ, stdout=subprocess.PIPE, text=True)


def test_kubectl_follows_logs_and_objects(machine: RunningPlatform, tmp_path: Path) -> None:
    talks = STEP.replace("        kept =", '        print("asked for", data.get("bytes"))\n        kept =')
    apply(machine, "talks", make_function(tmp_path, "talks", talks))
    wait_ready(machine, "talks")
    (pod,) = kubectl(machine, "get", "pods", "-l", "serving.knative.dev/service=talks", "-o", "name").split()
    logs = followed(machine, "logs", "-f", pod)
    watch = followed(machine, "get", "ksvc", "talks", "-w", "-o", "jsonpath={.metadata.generation}{'\\n'}")
    assert logs.stdout is not None
    assert watch.stdout is not None
    try:
        assert watch.stdout.readline() == "1\n"
        post(f"{machine.functions}/default/talks", {"bytes": 7})
        assert any("asked for 7" in line for line in logs.stdout)
        traffic = json.dumps({"spec": {"traffic": [{"latestRevision": True, "percent": 100, "tag": "t"}]}})
        kubectl(machine, "patch", "ksvc", "talks", "--type=merge", "-p", traffic)
        assert any(line == "2\n" for line in watch.stdout)
        kubectl(machine, "delete", "ksvc", "talks")
        logs.stdout.read()  # it ends with its replica
        assert logs.wait(20) == 0
    finally:
        for one in (logs, watch):
            one.kill()
            one.wait()
            assert one.stdout is not None
            one.stdout.close()
