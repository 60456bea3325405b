"""The front door in local mode: one function, and every model of the repository behind it."""

from __future__ import annotations

import json
from pathlib import Path

from kit import http
from modelrepo.tiny import scaling
from tables import ROOT

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
