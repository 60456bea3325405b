"""A function that speaks gRPC, deployed as any other, called from zero by Triton's client."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from kit import http, make_function

from relight.testing.platform import RunningPlatform

DOUBLE = """
from relight.sdk import Model, TensorSpec

class Double(Model):
    inputs = (TensorSpec("x", "FP32", (-1, 2)),)
    outputs = (TensorSpec("y", "FP32", (-1, 2)),)
    max_batch_size = 8

    def infer(self, inputs):
        return {"y": inputs["x"] * 2}

def new():
    return Double()
"""


def test_a_model_over_grpc_from_zero(stack: RunningPlatform, tmp_path: Path) -> None:
    folder = make_function(tmp_path, "double", DOUBLE)
    func_yaml = folder / "func.yaml"
    func_yaml.write_text(func_yaml.read_text() + "run:\n  envs:\n    - name: RELIGHT_PROTOCOL\n      value: grpc\n")
    stack.relight("deploy", str(folder))
    (revision,) = [
        one
        for one in json.loads(stack.relight("get", "revisions", "-o", "json").stdout)["items"]
        if one["metadata"]["name"].startswith("double-")
    ]
    (container,) = revision["spec"]["containers"]
    assert container["ports"] == [{"name": "h2c", "containerPort": 8080, "protocol": "TCP"}]
    name = revision["metadata"]["name"]
    scaled = json.loads(stack.relight("get", "podautoscaler", name, "-o", "json").stdout)
    assert scaled["spec"]["protocolType"] == "h2c"
    channel = [
        ("grpc.default_authority", "double.default.localhost"),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
    ]
    with triton.InferenceServerClient(stack.functions.removeprefix("http://"), channel_args=channel) as client:
        given = np.array([[1, 2], [3, 4]], np.float32)
        answer = client.infer("double", [triton.InferInput("x", [2, 2], "FP32").set_data_from_numpy(given)])
        assert answer.as_numpy("y").tolist() == [[2, 4], [6, 8]]
        assert client.get_model_metadata("double").platform == "python"
        assert client.get_inference_statistics("double").model_stats[0].inference_count == 2
    refused = http.request("GET", f"{stack.functions}/default/double/v2")
    assert refused.status == 505
    stack.relight("delete", "ksvc", "double")
