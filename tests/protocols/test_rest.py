"""What the table of facts does not reach of V2 over HTTP: extensions, content codings, limits; by Triton's client."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from ml_dtypes import bfloat16
from protocols.test_grpc import DATATYPES, VALUES, All
from runtime.serving import Served, loaded, served
from runtime.test_v2_cases import Constant, Echo, ask, split

from relight.base.errors import BadInput, TooLarge, Unsupported
from relight.runtime.engine import Engine
from relight.sdk import Array, Model, TensorSpec
from relight.wire import compression, tensors
from relight.wire.http import Headers, Request, Response

INFER = "/v2/models/m/infer"


class Scores(Model):
    """Four scores a row, of which one may be named."""

    inputs = (TensorSpec("x", "FP32", (-1, 4)),)
    outputs = (TensorSpec("scores", "FP32", (-1, 4)), TensorSpec("words", "BYTES", (-1,)))
    max_batch_size = 2

    def infer(self, inputs: dict[str, Array]) -> dict[str, Array]:
        return {"scores": inputs["x"], "words": np.array([b"w"] * len(inputs["x"]), dtype=object)}


@pytest.fixture(scope="module")
def scores() -> Iterator[Engine]:
    engine = loaded(Scores(), RELIGHT_MODEL="m", RELIGHT_MAX_BODY_BYTES="200000")
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def everything() -> Iterator[Served]:
    with served(All(), RELIGHT_MODEL="all") as server:
        yield server


def post(engine: Engine, body: Any, path: str = INFER, **headers: str) -> Response:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ask(engine, Request("POST", path, Headers(named), data))


def error(response: Response) -> str:
    return str(json.loads(response.body)["error"])


def one(rows: int = 1, **more: Any) -> dict[str, Any]:
    data = [[1.5, 4, -2, 4]] * rows
    return {"inputs": [{"name": "x", "shape": [rows, 4], "datatype": "FP32", "data": data}]} | more


# Triton's client, JSON and binary, packed and not.

IN_JSON: dict[str, list[Any]] = {
    "BYTES": ["größe".encode(), b""],
    "FP32": [0.5, -2.0],
    "FP64": [0.5, 1e300],
}
"""Values that have a JSON form, of datatypes whose others have none."""


@pytest.mark.parametrize("packed", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_every_datatype_by_triton_s_client(everything: Served, binary: bool, packed: str | None) -> None:
    inputs, outputs, want = [], [], {}
    for row in DATATYPES:
        name = row["v2"]
        as_binary = binary or not row["grpc_contents"]
        values = VALUES[name]
        if not as_binary:
            values = {"BYTES": [b"gr\xc3\xb6\xc3\x9fe", b""], "FP32": [0.5, -2.0], "FP64": [0.5, 1e300]}.get(
                name, values
            )
        given = triton.InferInput(name, [2], name)
        given.set_data_from_numpy(np.array(values, dtype=row["numpy"] or bfloat16), binary_data=as_binary)
        inputs.append(given)
        outputs.append(triton.InferRequestedOutput(name, binary_data=as_binary))
        want[name] = values
    with triton.InferenceServerClient(f"127.0.0.1:{everything.port}") as client:
        answer = client.infer(
            "all",
            inputs,
            request_id="r",
            outputs=outputs,
            request_compression_algorithm=packed,
            response_compression_algorithm=packed,
        )
    assert answer.get_response()["id"] == "r"
    for name, values in want.items():
        have = answer.as_numpy(name)
        if name == "BYTES" and not binary:
            assert [str(value).encode() if isinstance(value, str) else value for value in have] == values
        else:
            np.testing.assert_array_equal(have, np.array(values, dtype=have.dtype))


def test_triton_s_client_asks_for_statistics_and_classes(everything: Served) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{everything.port}") as client:
        before = client.get_inference_statistics("all")["model_stats"][0]
        inputs = [
            triton.InferInput(row["v2"], [2], row["v2"]).set_data_from_numpy(
                np.array([0, 1], dtype=row["numpy"] or bfloat16)
                if row["v2"] != "BYTES"
                else np.array([b"a", b"b"], dtype=object)
            )
            for row in DATATYPES
        ]
        outputs = [triton.InferRequestedOutput(name, class_count=1) for name in ("INT8", "BF16", "BOOL", "FP16")]
        answer = client.infer("all", inputs, outputs=outputs)
        for output in outputs:
            assert answer.as_numpy(output.name()).tolist() == [b"1.000000:1"]
        after = client.get_inference_statistics()["model_stats"][0]
        assert after["inference_count"] == before["inference_count"] + 1
        assert "statistics" in client.get_server_metadata()["extensions"]


def test_packed_answers_are_for_who_asks_for_one_coding(scores: Engine) -> None:
    body = one(400)
    for asked, used in {
        "gzip": "gzip",
        "deflate": "deflate",
        "gzip;q=0": None,
        "gzip, deflate": None,
        "br": None,
        "identity": None,
    }.items():
        response = post(scores, body, accept_encoding=asked)
        headers = dict(response.headers)
        assert headers.get("content-encoding") == used, asked
        plain = {"gzip": gzip.decompress, "deflate": zlib.decompress, None: bytes}[used](response.body)
        assert len(json.loads(plain)["outputs"][0]["data"]) == 1600
    assert "content-encoding" not in dict(post(scores, one(), accept_encoding="gzip").headers)


def test_packed_bodies_stop_at_the_limit(scores: Engine) -> None:
    data = json.dumps(one()).encode()
    raw = zlib.compressobj(wbits=-15)
    packings = {
        "gzip": gzip.compress(data),
        "x-gzip": gzip.compress(data[:9]) + gzip.compress(data[9:]),
        "deflate": zlib.compress(data),
        "Deflate": raw.compress(data) + raw.flush(),
        "identity": data,
    }
    for coding, packed in packings.items():
        assert post(scores, packed, content_encoding=coding).status == 200, coding
    bomb = gzip.compress(b"\0" * 100_000_000)
    tracemalloc.start()
    response = post(scores, bomb, content_encoding="gzip")
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()
    assert (response.status, error(response)) == (413, "the body is over 200000 bytes once it is unpacked")
    wrong = {
        "br": (415, "the content coding 'br' is not understood; expected gzip, deflate or identity"),
        "gzip, gzip": (415, "the content coding 'gzip, gzip' is not understood; expected gzip, deflate or identity"),
    }
    for coding, (status, told) in wrong.items():
        response = post(scores, data, content_encoding=coding)
        assert (response.status, error(response)) == (status, told)
    for broken in (data, packings["gzip"][:-3], b""):
        assert post(scores, broken, content_encoding="gzip").status == 400
    assert "follow the end" in error(post(scores, packings["deflate"] + b"xx", content_encoding="deflate"))


@pytest.mark.parametrize(
    ("coding", "limit", "kind"), [("gzip", 9, TooLarge), ("gzip", 10, None), ("zstd", 10, Unsupported)]
)
def test_the_limit_is_exact(coding: str, limit: int, kind: type[BadInput] | None) -> None:
    body = gzip.compress(b"0123456789")
    if kind is None:
        assert compression.decompress(coding, body, limit) == b"0123456789"
    else:
        with pytest.raises(kind):
            compression.decompress(coding, body, limit)


# The raw body.


class Grid(Echo):
    max_batch_size = 4


RAW: dict[str, tuple[TensorSpec, bool, bytes, list[int] | str]] = {
    "one open end": (TensorSpec("x", "FP32", (-1,)), False, b"\0" * 16, [4]),
    "a batch of one": (TensorSpec("x", "FP32", (-1, 4)), True, b"\0" * 16, [1, 4]),
    "a batch of one and an open end": (TensorSpec("x", "INT16", (-1, 2, -1)), True, b"\0" * 12, [1, 2, 3]),
    "no open end": (TensorSpec("x", "UINT8", (2, 3)), False, b"\0" * 6, [2, 3]),
    "bytes": (TensorSpec("x", "BYTES", (-1,)), False, b"\xff any", [1]),
    "a batch of bytes": (TensorSpec("x", "BYTES", (-1, 1)), True, b"", [1, 1]),
    "half precision": (TensorSpec("x", "BF16", (-1,)), False, b"\x80?\x00@", [2]),
    "too short": (TensorSpec("x", "FP32", (-1, 4)), True, b"\0" * 12, "the body as 'x': shape [1, 4] of FP32 is 16"),
    "does not divide": (TensorSpec("x", "FP32", (-1,)), False, b"\0" * 15, "the body as 'x': shape [3] of FP32 is 12"),
    "two open ends": (
        TensorSpec("x", "FP32", (-1, -1)),
        False,
        b"\0" * 16,
        "the shape [-1, -1] of 'x' does not",
    ),
    "several bytes": (TensorSpec("x", "BYTES", (2,)), False, b"ab", "the body as 'x': the shape promises 2 elements"),
    "nothing to divide by": (TensorSpec("x", "FP32", (-1, 0)), False, b"\0" * 4, "the body as 'x': shape [0, 0]"),
}


@pytest.mark.parametrize("name", RAW)
def test_raw_body(name: str) -> None:
    spec, batched, body, want = RAW[name]
    engine = loaded((Grid if batched else Echo)([spec]), RELIGHT_MODEL="m")
    response = post(engine, body, inference_header_content_length="0")
    engine.stop()
    if isinstance(want, str):
        assert response.status == 400
        assert error(response).startswith(want)
        return
    head, blobs = split(response)
    assert [output["shape"] for output in head["outputs"]] == [want] * 3
    expected = len(body).to_bytes(4, "little") + body if spec.datatype == "BYTES" else body
    assert blobs["y0"] == expected


def test_raw_body_needs_one_input() -> None:
    engine = loaded(All(), RELIGHT_MODEL="m")
    response = post(engine, b"", inference_header_content_length="0")
    engine.stop()
    assert (response.status, error(response)) == (
        400,
        "a body of tensor bytes alone is for models of one input; this one has 14",
    )


# Classification.


def test_classes(scores: Engine) -> None:
    wanted = [{"name": "scores", "parameters": {"classification": 3}}]
    head, _ = split(post(scores, one(2, outputs=wanted)))
    (output,) = head["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("scores", "BYTES", [2, 3])
    # Of equal scores the first is the first.
    assert output["data"] == ["4.000000:1", "4.000000:3", "1.500000:0"] * 2
    wanted[0]["parameters"] |= {"classification": 9, "binary_data": True}
    head, blobs = split(post(scores, one(0, outputs=wanted)))
    assert (head["outputs"][0]["shape"], blobs["scores"]) == ([0, 0], b"")
    head, blobs = split(post(scores, one(1, outputs=wanted)))
    assert head["outputs"][0]["shape"] == [1, 4]
    assert blobs["scores"].endswith(b"\x0b\0\0\0-2.000000:2")


@pytest.mark.parametrize(
    ("array", "want"),
    [
        (np.array([np.nan, 1, np.inf], "<f4"), [b"inf:2", b"1.000000:1", b"nan:0"]),
        (np.array([-(2**63), 2**63 - 1, 0], "<i8"), [2**63 - 1, 0, -(2**63)]),
        (np.array([0, 2**64 - 1], "<u8"), [2**64 - 1, 0]),
    ],
    ids=["not finite", "signed", "unsigned"],
)
def test_classes_at_the_edges(array: Array, want: list[Any]) -> None:
    engine = loaded(Constant(o=(tensors.datatype_of(array.dtype), array)), RELIGHT_MODEL="m")
    given = {
        "inputs": [{"name": "i", "shape": [1], "datatype": "BOOL", "data": [True]}],
        "outputs": [{"name": "o", "parameters": {"classification": 3}}],
    }
    head, _ = split(post(engine, given))
    engine.stop()
    have = [text.encode() for text in head["outputs"][0]["data"]]
    order = [int(text.rpartition(b":")[2]) for text in have]
    if isinstance(want[0], bytes):
        assert have == want
    else:
        assert [int(array[index]) for index in order] == want


@pytest.mark.parametrize(
    ("name", "classes", "told"),
    [
        ("words", 1, "the output 'words' is BYTES; only numbers can be ranked"),
        ("scores", -1, "expected how many classes, got -1"),
        ("scores", 1.5, "expected how many classes, got 1.5"),
        ("scores", True, "expected how many classes, got True"),
    ],
)
def test_classes_that_make_no_sense(scores: Engine, name: str, classes: Any, told: str) -> None:
    response = post(scores, one(outputs=[{"name": name, "parameters": {"classification": classes}}]))
    assert (response.status, error(response)) == (400, f"outputs[0].parameters.classification: {told}")


# Statistics.


def test_statistics() -> None:
    engine = loaded(Scores(), RELIGHT_MODEL="m")
    for rows in (1, 3, 0):
        assert post(engine, one(rows)).status == 200
    assert post(engine, {}).status == 400
    for path in ("/v2/models/m/stats", "/v2/models/stats"):
        body = json.loads(ask(engine, Request("GET", path)).body)
        (stats,) = body["model_stats"]
        assert (stats["name"], stats["version"]) == ("m", "")
        assert (stats["inference_count"], stats["execution_count"]) == (4, 3)
        assert stats["last_inference"] > 1_600_000_000_000
        durations = stats["inference_stats"]
        assert {name: spent["count"] for name, spent in durations.items()} == {
            "success": 3,
            "fail": 0,
            "queue": 3,
            "compute_input": 3,
            "compute_infer": 3,
            "compute_output": 3,
            "cache_hit": 0,
            "cache_miss": 0,
        }
        assert durations["success"]["ns"] >= durations["queue"]["ns"] + durations["compute_infer"]["ns"] > 0
        assert {one["batch_size"]: one["compute_infer"]["count"] for one in stats["batch_stats"]} == {0: 1, 1: 1, 3: 1}
    assert ask(engine, Request("GET", "/v2/models/other/stats")).status == 404
    assert ask(engine, Request("GET", "/v2/models/m/versions/1/stats")).status == 404
    engine.stop()


# Limits: what is promised is compared with what is there before anything is made for it.


BINARY = {"parameters": {"binary_data_size": 10}}
HOSTILE: dict[str, tuple[dict[str, Any], bytes, str]] = {
    "a huge shape": ({"shape": [2**40], **BINARY}, b"\0" * 10, "is 4398046511104 bytes, 10 are there"),
    "a shape beyond 64 bits": ({"shape": [2**62, 2**62], **BINARY}, b"\0" * 10, "10 are there"),
    "a huge shape in JSON": ({"shape": [2**40], "data": [1]}, b"", "1099511627776 elements, 1 are there"),
    "far too many elements": ({"shape": [1], "data": [1] * 90_000}, b"", "promises 1 elements, 90000 are there"),
    "far too deep": ({"shape": [1], "data": json.loads("[" * 200 + "]" * 200)}, b"", "expected a flat array"),
    "very many dimensions": ({"shape": [2**62] * 9_000, **BINARY}, b"\0" * 10, "… ] (9000 dimensions)"),
    "an array that cannot be": ({"shape": [0, 2**62, 2**62], "data": []}, b"", "is not a shape that an array can have"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_is_allocated_for_a_promise(name: str) -> None:
    tensor, tail, told = HOSTILE[name]
    rank = 1 if len(tensor["shape"]) > 64 else len(tensor["shape"])
    engine = loaded(Echo([TensorSpec("x", "FP32", (-1,) * rank)]), RELIGHT_MODEL="m")
    head = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", **tensor}]}).encode()
    headers = {"inference_header_content_length": str(len(head))} if tail else {}
    tracemalloc.start()
    response = post(engine, head + tail, **headers)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    engine.stop()
    assert response.status == 400
    assert told.replace("… ]", "…]") in error(response)
    assert peak < 2_000_000, "the answer took more memory than the question"
    assert len(response.body) < 1000


def test_a_million_mistakes_get_a_short_answer() -> None:
    engine = loaded(Scores(), RELIGHT_MODEL="m")
    tensor = {"name": "n" * 1000, "shape": [1], "datatype": "d" * 1000, "data": []}
    response = post(engine, {"inputs": [tensor] * 20_000, "outputs": [{"name": "o" * 1000}] * 20_000})
    assert response.status == 400
    assert error(response).endswith("and more mistakes that are not listed")
    assert len(response.body) < 6000
    response = post(engine, {"inputs": [{"name": 1}] * 20_000})
    assert len(response.body) < 6000
    engine.stop()


def test_bf16_is_kept_bit_for_bit() -> None:
    bits = np.arange(2**16, dtype="<u2")
    array = tensors.from_bytes("BF16", [2**16], bits.tobytes(), "x")
    assert tensors.to_bytes(array, "BF16") == bits.tobytes()
    # A NaN whose payload does not fit stays one; numbers are rounded to the nearest, ties to even.
    wide = np.array([0x7F800001, 0x3F808000, 0x3F818000, 0x3F80FFFF], "<u4").view("<f4")
    assert np.frombuffer(tensors.to_bytes(wide, "BF16"), "<u2").tolist() == [0x7FC0, 0x3F80, 0x3F82, 0x3F81]


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e400", '"NaN"', "null"])
def test_what_is_not_finite_comes_in_binary_only(scores: Engine, text: str) -> None:
    body = json.dumps(one()).replace("1.5", text).encode()
    assert post(scores, body).status == 400
    raw = np.array([np.nan, np.inf, -np.inf, 1], "<f4").tobytes()
    _, blobs = split(post(scores, raw, inference_header_content_length="0"))
    assert blobs["scores"] == raw
