"""Every row about REST of the table of Open Inference Protocol facts, against an echo model made for the row."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from runtime.serving import loaded
from tables import load

from relight.runtime.context import FunctionSettings
from relight.runtime.engine import Engine
from relight.runtime.pending import Pending
from relight.sdk import Array, Model, TensorSpec
from relight.wire import tensors
from relight.wire.http import Headers, Request, Response

CASES = load("v2_cases")


class Echo(Model):
    """Returns its inputs under their names, and an input ``x`` also as ``y0`` and ``y1``."""

    def __init__(self, inputs: Sequence[TensorSpec]) -> None:
        self.inputs = tuple(inputs)
        copies = [TensorSpec(name, s.datatype, s.shape) for s in inputs if s.name == "x" for name in ("y0", "y1")]
        self.outputs = (*inputs, *copies)

    def infer(self, inputs: dict[str, Array]) -> dict[str, Array]:
        return {spec.name: inputs.get(spec.name, inputs.get("x")) for spec in self.outputs}


class Constant(Model):
    """Returns what it was made with."""

    inputs = (TensorSpec("i", "BOOL", (1,)),)

    def __init__(self, **outputs: tuple[str, Array]) -> None:
        self.outputs = [TensorSpec(name, datatype, array.shape) for name, (datatype, array) in outputs.items()]
        self._arrays = {name: array for name, (_, array) in outputs.items()}

    def infer(self, inputs: dict[str, Array]) -> dict[str, Array]:
        return self._arrays


def ask(engine: Engine, request: Request) -> Response:
    answer = engine.dispatch(request)
    if isinstance(answer, Pending):
        answer.future.exception(timeout=10)
        return answer.respond()
    return answer


def specs_for(body: bytes) -> list[TensorSpec]:
    """The inputs of a model that fits a request as far as it makes sense."""
    text = body.decode("utf-8", "replace")
    try:
        inputs = json.JSONDecoder().raw_decode(text)[0]["inputs"]
        assert isinstance(inputs, list)
        assert inputs
    except (ValueError, KeyError, AssertionError):
        return [TensorSpec("x", "FP32", (-1,))]
    names = [item["name"] for item in inputs] if len({item["name"] for item in inputs}) > 1 else ["x"]
    return [
        TensorSpec(name, item.get("datatype", "FP32"), [-1] * len(item["shape"]))
        for name, item in zip(names, inputs, strict=False)
    ]


def split(response: Response) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The JSON of an answer, and the bytes of its binary outputs."""
    headers = dict(response.headers)
    length = headers.get("inference-header-content-length")
    head = json.loads(response.body[: int(length)] if length else response.body, parse_constant=_not_strict)
    tail, at = response.body[int(length) :] if length else b"", 0
    blobs = {}
    for output in head.get("outputs", []):
        size = output.get("parameters", {}).get("binary_data_size")
        if size is not None:
            blobs[output["name"]] = tail[at : at + size]
            at += size
    assert at == len(tail)
    assert headers["content-type"] == ("application/octet-stream" if length else "application/json")
    return head, blobs


def _not_strict(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def value(response: Response, name: str) -> Any:
    """An output as nested Python data, whichever form it was sent in."""
    head, blobs = split(response)
    output = next(item for item in head["outputs"] if item["name"] == name)
    if name in blobs:
        array = tensors.from_bytes(output["datatype"], output["shape"], blobs[name], name)
        return array.tolist()
    return np.array(output["data"]).reshape(output["shape"]).tolist()


@pytest.mark.parametrize("row", CASES["requests"], ids=lambda row: row["id"])
def test_request(row: dict[str, Any]) -> None:
    body = row["body"] if isinstance(row["body"], str) else json.dumps(row["body"])
    data = body.encode() + base64.b64decode(row.get("binary_tail_base64", ""))
    engine = loaded(Echo(specs_for(data)), RELIGHT_MODEL="echo")
    want = row["want"]
    response = ask(engine, Request("POST", want.get("path", row["path"]), Headers(row["headers"]), data))
    engine.stop()
    allowed = [want["status"]] if "status" in want else [int(text[:3]) for text in want["either"]]
    assert response.status in allowed, response.body
    if response.status != 200:
        assert set(json.loads(response.body)) == {"error"}
        assert json.loads(response.body)["error"]
        return
    head, _ = split(response)
    assert head["model_name"] == "echo"
    if "id" in want:
        assert head["id"] == want["id"]
    if "outputs" in want:
        assert [output["name"] for output in head["outputs"]] == want["outputs"]
    if "dtype" in want:
        assert {output["datatype"] for output in head["outputs"]} == {want["dtype"]}
    if "tensor" in want:
        assert value(response, "y0") == want["tensor"]
    for name, tensor in want.get("tensors", {}).items():
        assert value(response, name) == tensor
    if "outputs_shape_first_dim" in want:
        assert {output["shape"][0] for output in head["outputs"]} == {want["outputs_shape_first_dim"]}


@pytest.mark.parametrize("row", [row for row in CASES["endpoints"] if "any_error" not in row], ids=str)
def test_endpoint(row: dict[str, Any]) -> None:
    method, path = next((key, row[key]) for key in ("get", "post") if key in row)
    engine = loaded(Echo([TensorSpec("x", "FP32", (-1,))]), RELIGHT_MODEL="m")
    good = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}
    body = json.dumps(good).encode() if path.endswith("infer") else b""
    response = ask(engine, Request(method.upper(), path, body=body))
    answer = json.loads(response.body)
    assert response.status == row.get("ok", 404)
    if "body" in row:
        assert answer == row["body"]
    assert set(row.get("body_has", ())) <= set(answer)
    if "unknown_model" in row:
        unknown = ask(engine, Request(method.upper(), path.replace("/m", "/other", 1), body=body))
        assert unknown.status == row["unknown_model"]
        assert set(json.loads(unknown.body)) == {"error"}
    if "bad_input" in row:
        assert ask(engine, Request("POST", path, body=b"{}")).status == row["bad_input"]
    engine.stop()
    if "not_ready" in row:
        created = Engine(lambda: Echo([]), FunctionSettings())
        assert ask(created, Request(method.upper(), path, body=body)).status == row["not_ready"]


@pytest.mark.parametrize("row", CASES["datatypes"], ids=lambda row: row["v2"])
def test_datatype(row: dict[str, Any]) -> None:
    assert tensors.size_of(row["v2"]) == row["size"]
    # BF16 has no numpy type: it is held as float32.
    assert tensors.numpy_dtype(row["v2"]).name == (row["numpy"] or "float32")


def test_no_datatype_is_missing() -> None:
    assert set(tensors.DATATYPES) == {row["v2"] for row in CASES["datatypes"]}


@pytest.mark.parametrize("row", CASES["numpy_to_v2"], ids=lambda row: row["numpy"])
def test_numpy_to_v2(row: dict[str, Any]) -> None:
    assert tensors.datatype_of(np.dtype(row["numpy"].split(" ")[0])) == row["want"]


@pytest.mark.parametrize("row", CASES["byte_codec"], ids=lambda row: f"{row['datatype']} {row['elements']}")
def test_byte_codec(row: dict[str, Any]) -> None:
    datatype, elements, data = row["datatype"], row["elements"], base64.b64decode(row["want_base64"])
    if datatype == "BYTES":
        array = np.array([text.encode() for text in elements], dtype=object)
    else:
        array = np.array([float(x) if isinstance(x, str) else x for x in elements], tensors.numpy_dtype(datatype))
    assert tensors.to_bytes(array, datatype) == data
    back = tensors.from_bytes(datatype, [len(elements)], data, "x")
    assert tensors.to_bytes(back, datatype) == data
    np.testing.assert_array_equal(back, array)


FP16 = np.array([1.0], "<f2")
ENCODINGS: dict[str, tuple[Constant, dict[str, str]]] = {
    "all json by default": (Constant(o=("FP32", np.ones(1, "<f4"))), {"o": "json"}),
    "binary_data_output true": (
        Constant(a=("FP16", FP16), b=("FP16", FP16), c=("BYTES", np.array([b"xy"], object))),
        {"a": "binary", "b": "binary", "c": "binary"},
    ),
    "per-output flag beats the request flag": (
        Constant(a=("FP16", FP16), b=("INT32", np.ones(1, "<i4")), c=("BYTES", np.array([b"xy"], object))),
        {"a": "binary", "b": "json", "c": "binary"},
    ),
    "only one output binary": (
        Constant(a=("FP32", np.ones(1, "<f4")), b=("FP32", np.ones(1, "<f4"))),
        {"a": "binary", "b": "json"},
    ),
    "fp16 output, client asked json": (Constant(o=("FP16", FP16)), {"o": "binary"}),
    "output holds NaN/Inf, json asked": (
        Constant(o=("FP32", np.array([1, np.nan, np.inf, -np.inf], "<f4"))),
        {"o": "json"},
    ),
    "non-utf8 BYTES output, json asked": (Constant(o=("BYTES", np.array([b"\xff\xfe"], object))), {"o": "binary"}),
    "binary offsets follow outputs order": (
        Constant(a=("INT32", np.ones(1, "<i4")), b=("FP16", FP16)),
        {"a": "binary", "b": "binary"},
    ),
    "no model_version when unversioned": (Constant(o=("FP32", np.ones(1, "<f4"))), {"o": "json"}),
}


@pytest.mark.parametrize("row", CASES["response_encoding"], ids=lambda row: row["id"])
def test_response_encoding(row: dict[str, Any]) -> None:
    model, want = ENCODINGS[row["id"]]
    given = {"inputs": [{"name": "i", "shape": [1], "datatype": "BOOL", "data": [True]}]} | row.get("request", {})
    engine = loaded(model, RELIGHT_MODEL="m")
    response = ask(engine, Request("POST", "/v2/models/m/infer", body=json.dumps(given).encode()))
    engine.stop()
    assert response.status == 200
    head, blobs = split(response)
    assert {o["name"]: "binary" if o["name"] in blobs else "json" for o in head["outputs"]} == want
    assert all(("data" in output) != (output["name"] in blobs) for output in head["outputs"])
    assert "model_version" not in head
    if row["id"].startswith("output holds NaN"):
        assert head["outputs"][0]["data"] == [1.0, None, None, None]
    if row["id"].startswith("binary offsets"):
        assert b"".join(blobs.values()) == base64.b64decode(row["want"]["tail_base64_for_a=1_b=1.0"])
    if row["id"].startswith("binary_data_output"):
        assert blobs == {"a": b"\x00<", "b": b"\x00<", "c": b"\x02\x00\x00\x00xy"}


def test_binary_form_of_what_is_not_finite_is_exact() -> None:
    bits = np.array([0x7FC00001, 0x7F800000, 0xFF800000, 0x80000000], "<u4").view("<f4")
    given = {
        "inputs": [{"name": "i", "shape": [1], "datatype": "BOOL", "data": [True]}],
        "parameters": {"binary_data_output": True},
    }
    engine = loaded(Constant(o=("FP32", bits)), RELIGHT_MODEL="m")
    _, blobs = split(ask(engine, Request("POST", "/v2/models/m/infer", body=json.dumps(given).encode())))
    engine.stop()
    assert blobs["o"] == bits.tobytes()
