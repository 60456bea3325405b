"""Requests whose JSON headers repeat are read as if each were the first."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from relight.base.errors import BadInput
from relight.wire import v2, v2heads
from relight.wire.http import Headers
from relight.wire.inference import Wanted
from relight.wire.tensors import TensorSpec

X = (TensorSpec("x", "FP32", (-1, 2)), TensorSpec("t", "BYTES", (-1,)))
Y = (TensorSpec("y", "FP32", (-1, 2)),)
TEXT = b"\x02\x00\x00\x00ab"


def request(x: bytes, t: bytes = TEXT, **more: Any) -> tuple[Headers, bytes]:
    tensors = [
        {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": len(x)}},
        {"name": "t", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(t)}},
    ]
    head = json.dumps({"inputs": tensors} | more).encode()
    return Headers({v2.HEADER_LENGTH: str(len(head))}), head + x + t


def read(headers: Headers, body: bytes, inputs: Any = X) -> v2.InferRequest:
    return v2heads.decode_request(headers, body, inputs=inputs, outputs=Y)


def test_the_same_header_with_other_bytes_is_another_request() -> None:
    for number in range(5):
        x = np.array([[number, -number]], "<f4")
        text = b"\x02\x00\x00\x00%02d" % number
        got = read(
            *request(x.tobytes(), text, id="7", parameters={"binary_data_output": True}, outputs=[{"name": "y"}])
        )
        assert got.inputs["x"].tolist() == x.tolist()
        assert got.inputs["t"].tolist() == [b"%02d" % number]
        assert (got.id, got.binary, got.outputs, got.parameters) == (
            "7",
            True,
            (Wanted("y", True),),
            {"binary_data_output": True},
        )


def test_what_is_in_the_bytes_is_checked_each_time() -> None:
    x = bytes(8)
    for _ in range(3):
        read(*request(x))
        with pytest.raises(BadInput, match="3 bytes promised, 2 are there"):
            read(*request(x, b"\x03\x00\x00\x00ab"))


def test_a_header_that_does_not_fit_is_refused_each_time() -> None:
    for _ in range(3):
        with pytest.raises(BadInput, match="is 8 bytes, 4 are there"):
            read(*request(bytes(4)))
        headers, body = request(bytes(8))
        read(headers, body)
        with pytest.raises(BadInput, match="follow the last binary tensor"):
            read(headers, body + b"x")
        with pytest.raises(BadInput, match="promises 6 bytes"):
            read(headers, body[:-1])


def test_another_model_reads_it_anew() -> None:
    read(*request(bytes(8)))
    with pytest.raises(BadInput, match="'x' is INT64, got FP32"):
        read(*request(bytes(8)), inputs=(TensorSpec("x", "INT64", (-1, 2)), X[1]))


def test_tensors_in_json_are_left_to_the_protocol() -> None:
    for number in range(3):
        tensors = [
            {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [number, 1]},
            {"name": "t", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 6}},
        ]
        head = json.dumps({"inputs": tensors}).encode()
        got = read(Headers({v2.HEADER_LENGTH: str(len(head))}), head + TEXT)
        assert got.inputs["x"].tolist() == [[number, 1]]


def test_no_more_is_remembered_than_that_many() -> None:
    for number in range(2 * v2heads.MOST):
        read(*request(bytes(8), id=str(number)))
    assert len(v2heads._known) <= v2heads.MOST


def test_classification_is_remembered_with_the_header() -> None:
    outputs = [{"name": "y", "parameters": {"classification": 2}}]
    headers, body = request(np.ones((1, 2), "<f4").tobytes(), outputs=outputs)
    assert read(headers, body).outputs == read(headers, body).outputs == (Wanted("y", False, 2),)


def test_a_body_of_bytes_alone_is_read_anew_each_time() -> None:
    headers = Headers({v2.HEADER_LENGTH: "0"})
    specs = (TensorSpec("x", "FP32", (-1, 2)),)
    for rows in ([1.0, 2.0], [3.0, 4.0]):
        asked = v2heads.decode_request(headers, np.array(rows, "<f4").tobytes(), inputs=specs, outputs=Y, batched=True)
        assert asked.inputs["x"].tolist() == [rows]
        assert asked.binary
