"""The front door in local mode: one function, and every model of the repository behind it."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path

import yaml
from kit import http
from modelrepo.tiny import scaling
from tables import ROOT

from relight.net.kube import Kube
from relight.testing.platform import RunningPlatform


def test_the_front_door_serves_models_that_it_was_not_deployed_for(stack: RunningPlatform, tmp_path: Path) -> None:
    url = json.loads(stack.relight("deploy", str(ROOT / "functions" / "model"), "-o", "json").stdout)["url"]
    for name, factor in (("double", 2), ("triple", 3)):
        (tmp_path / f"{name}.onnx").write_bytes(scaling(factor))
        stack.relight("model", "push", str(tmp_path / f"{name}.onnx"), name)
    body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
    for name, factor in (("double", 2), ("triple", 3)):
        answer = http.request("POST", f"{url}/v2/models/{name}/infer", json=body)
        assert answer.status == 200, answer.data
        assert answer.json()["outputs"][0]["data"] == [factor * x for x in (1, 2, 3, 4)]
    entries = http.request("POST", f"{url}/v2/repository/index", json={}).json()
    states = {entry["name"]: entry["state"] for entry in entries if entry["name"] in ("double", "triple", "minilm")}
    assert states == {"minilm": "READY", "double": "READY", "triple": "READY"}


def own_project(folder: Path, name: str, env: dict[str, str]) -> Path:
    """A copy of the front door under another name, with other settings."""
    shutil.copytree(ROOT / "functions" / "model", folder)
    project = yaml.safe_load((folder / "func.yaml").read_text())
    project["name"] = name
    project["run"]["envs"] = [{"name": key, "value": value} for key, value in env.items()]
    (folder / "func.yaml").write_text(yaml.safe_dump(project))
    (folder / "relight.yaml").write_text(
        'spec: {template: {metadata: {annotations: {autoscaling.knative.dev/window: "6s"}}}}\n'
    )
    return folder


def test_a_model_at_zero_is_answered_for_while_its_own_function_wakes(stack: RunningPlatform, tmp_path: Path) -> None:
    (tmp_path / "four.onnx").write_bytes(scaling(4))
    stack.relight("model", "push", str(tmp_path / "four.onnx"), "four")
    own = {"RELIGHT_OWN_FUNCTIONS": "four=http://four.default.svc.cluster.local", "RELIGHT_FORWARD_SECONDS": "5"}
    stack.relight("deploy", str(own_project(tmp_path / "four", "four", {"RELIGHT_MODEL": "four"})))
    door = own_project(tmp_path / "door", "door", own)
    url = json.loads(stack.relight("deploy", str(door), "-o", "json").stdout)["url"]
    body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}

    def ask() -> dict[str, float]:
        """Who has answered so far, after one more call."""
        answer = http.request("POST", f"{url}/v2/models/four/infer", json=body)
        assert answer.status == 200, answer.data
        assert answer.json()["outputs"][0]["data"] == [4, 8, 12, 16]
        text = http.request("GET", f"{url}/metrics").data.decode()
        return {by: float(n) for by, n in re.findall(r'answers_total\{by="([\w ]+)",model="four"\} ([\d.]+)', text)}

    with Kube.from_kubeconfig(stack.kubeconfig) as kube:
        for _, found in kube.watch("serving.knative.dev/v1", "Revision", "default", name="four-00001", timeout=40):
            if found.get("status", {}).get("actualReplicas", 0) == 0:
                break
        assert ask() == {"front door": 1.0}
        for _, found in kube.watch("serving.knative.dev/v1", "Revision", "default", name="four-00001", timeout=40):
            if found.get("status", {}).get("actualReplicas", 0) == 1:
                break
    deadline = time.monotonic() + 20
    while "own function" not in ask():
        assert time.monotonic() < deadline
