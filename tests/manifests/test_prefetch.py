"""Manifests that fill the cache before a function needs it: what they ask for, and what their command does."""

from __future__ import annotations

import http.client
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from modelrepo.tiny import scaling
from tables import ROOT

from relight.cluster.documents import read_documents
from relight.store.files import Files
from relight.store.manifest import CHUNK
from relight.store.repository import Repository

MANIFESTS = ROOT / "manifests"
PREFETCH = {"nodes": "DaemonSet", "claim": "Job"}
KUBERNETES = "1.36.0"


def render(path: Path) -> dict[str, dict[str, Any]]:
    return {str(document.value["kind"]): dict(document.value) for document in read_documents([str(path)])}


def container(workload: dict[str, Any]) -> dict[str, Any]:
    pod = workload["spec"]["template"]["spec"]
    (found,) = [one for one in [*pod.get("initContainers", ()), *pod["containers"]] if one["name"] == "prefetch"]
    return dict(found)


@pytest.mark.parametrize("name", PREFETCH)
def test_they_are_valid_and_fit_the_functions(name: str) -> None:
    objects = render(MANIFESTS / "prefetch" / name)
    assert set(objects) == {PREFETCH[name], "ConfigMap"}
    for one in objects.values():
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
    prefetch = container(objects[PREFETCH[name]])
    settings = dict(
        line.split("=", 1)
        for line in (MANIFESTS / "components/settings/settings.env").read_text().splitlines()
        if not line.startswith("#")
    )
    # The same names: else a function asks the repository again.
    assert objects["ConfigMap"]["data"]["RELIGHT_REPOSITORY"] == settings["RELIGHT_REPOSITORY"]
    assert objects["ConfigMap"]["metadata"]["name"] == prefetch["envFrom"][0]["configMapRef"]["name"]
    kustomization = (MANIFESTS / "components/settings/kustomization.yaml").read_text()
    assert f"name: {prefetch['envFrom'][1]['secretRef']['name']}\n" in kustomization
    spec = objects[PREFETCH[name]]["spec"]["template"]["spec"]
    (volume,) = spec["volumes"]
    component = (
        MANIFESTS / f"components/cache-{'pvc' if name == 'claim' else 'hostpath'}/kustomization.yaml"
    ).read_text()
    where = volume.get("persistentVolumeClaim", {}).get("claimName") or volume["hostPath"]["path"]
    assert re.search(rf"(claimName|path): {where}$", component, re.MULTILINE)
    assert spec["securityContext"]["runAsNonRoot"]


def test_many_pods_of_a_node_that_start_at_once_fetch_once(tmp_path: Path) -> None:
    """Two pods of the DaemonSet, as in a rollout, and three of a function; the storage counts what is read of it."""
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "model.onnx").write_bytes(scaling(2))
    (weights / "more.bin").write_bytes(os.urandom(2 * CHUNK + 5))
    Repository(Files(tmp_path / "models")).push(weights, "double")
    prefetch = container(render(MANIFESTS / "prefetch" / "nodes")["DaemonSet"])
    names = {one["name"]: one["value"] for one in prefetch["env"]}
    assert names == {"RELIGHT_CACHE": "/cache"}
    reads = tmp_path / "reads"
    common = {
        "RELIGHT_CACHE": str(tmp_path / "cache"),
        "RELIGHT_REPOSITORY": (tmp_path / "models").as_uri(),
        "READS": str(reads),
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    }
    command = list(prefetch["command"])
    # `relight` of this environment, that counts; everything else is the manifest's own words.
    counting = f"{sys.executable} {Path(__file__).parent / 'counting.py'}"
    assert command == ["sh", "-c", "exec relight cache prefetch $MODELS"]
    command[-1] = command[-1].replace("exec relight", f"exec {counting} relight")
    ports = [_free_port() for _ in range(3)]
    pods = [subprocess.Popen(command, env=common | {"MODELS": "double"}, stdout=subprocess.PIPE) for _ in range(2)]
    functions = [
        subprocess.Popen(
            [*counting.split(), "serve", str(ROOT / "functions" / "model")],
            env=common | {"RELIGHT_MODEL": "double", "PORT": str(port)},
            stderr=subprocess.DEVNULL,
        )
        for port in ports
    ]
    try:
        for pod in pods:
            assert b"double version 1" in pod.communicate(timeout=60)[0]
        for port in ports:
            _wait_until_ready(port)
    finally:
        for process in (*pods, *functions):
            process.terminate()
        for process in (*pods, *functions):
            process.wait(20)
    lines = sorted(reads.read_text().split("\n")[:-1])
    assert lines == sorted({*lines}), "each chunk is read once"
    assert len(lines) == 1 + 3


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _wait_until_ready(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("GET", "/v2/models/double/ready")
            if connection.getresponse().status == 200:
                return
        except OSError:
            assert time.monotonic() < deadline
        finally:
            connection.close()
        assert time.monotonic() < deadline
        time.sleep(0.05)
