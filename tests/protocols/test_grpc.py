"""V2 over gRPC, asked by Triton's own client and, where that would not say such a thing, by its messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from protocols.calling import Called, called
from runtime.test_v2_cases import Constant, Echo
from tables import load
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from relight.base import errors
from relight.runtime.context import FunctionSettings
from relight.runtime.engine import Engine
from relight.sdk import Array, Model, TensorSpec
from relight.wire import grpcstatus
from relight.wire.v2messages import HEALTH, INFERENCE

CASES = {row["id"]: row for row in load("v2_cases")["grpc"]}
DATATYPES = [row for row in load("v2_cases")["datatypes"]]
VALUES: dict[str, list[Any]] = {
    "BOOL": [True, False],
    "BYTES": [b"\xff\x00", b""],
    "FP16": [1.5, -2.0],
    "BF16": [1.5, -2.0],
    "FP32": [float("nan"), float("-inf")],
    "FP64": [float("nan"), 1e300],
} | {
    name: [0, np.iinfo(name.lower()).max]
    for name in ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
}


class All(Model):
    """Returns what it gets, of every datatype."""

    inputs = tuple(TensorSpec(row["v2"], row["v2"], (-1,)) for row in DATATYPES)
    outputs = inputs

    def infer(self, inputs: dict[str, Array]) -> dict[str, Array]:
        return inputs


@pytest.fixture(scope="module")
def echo() -> Iterator[Called]:
    with called(Echo([TensorSpec("x", "INT8", (-1,))]), RELIGHT_MODEL="echo") as server:
        yield server


def ask(server: Called, message: Any, method: str = "ModelInfer") -> Any:
    with grpc.insecure_channel(server.url) as channel:
        return getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), method)(message, timeout=10)


def refused(server: Called, message: Any, method: str = "ModelInfer") -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as raised:
        ask(server, message, method)
    return raised.value.code().name, raised.value.details()


def infer(datatype: str = "INT8", shape: tuple[int, ...] = (2,), model: str = "echo", **more: Any) -> Any:
    """A request whose input ``x`` has no data yet."""
    message = pb.ModelInferRequest(model_name=model, **more)
    message.inputs.add(name="x", datatype=datatype, shape=shape)
    return message


# Rows of the table.


def test_fp16_must_be_raw() -> None:
    assert CASES.pop("fp16 must be raw")["want"] == "raw_input_contents"
    with called(Echo([TensorSpec("x", "FP16", (-1,))]), RELIGHT_MODEL="echo") as server:
        typed = infer("FP16", (1,))
        typed.inputs[0].contents.fp32_contents.append(1)
        status, told = refused(server, typed)
        assert status == "INVALID_ARGUMENT"
        assert told == "inputs[0].contents: FP16 has no typed form; send raw_input_contents"
        raw = infer("FP16", (1,), raw_input_contents=[b"\x00<"])
        assert ask(server, raw).raw_output_contents[0] == b"\x00<"


def test_raw_and_typed_mixed(echo: Called) -> None:
    assert CASES.pop("raw and typed contents mixed in one request")["want"].startswith("INVALID_ARGUMENT")
    mixed = infer(raw_input_contents=[b"\x01\x02"])
    mixed.inputs[0].contents.int_contents.extend([1, 2])
    status, told = refused(echo, mixed)
    assert status == "INVALID_ARGUMENT"
    assert told.startswith("inputs[0].contents: raw_input_contents is there too")


def test_raw_count(echo: Called) -> None:
    assert CASES.pop("raw_input_contents count differs from inputs")["want"].startswith("INVALID_ARGUMENT")
    for raw in ([b"\x01\x02", b""], [b"\x01\x02"] * 3):
        status, told = refused(echo, infer(raw_input_contents=raw))
        assert status == "INVALID_ARGUMENT"
        assert told.startswith(f"raw_input_contents: {len(raw)} are there for 1 inputs")


def test_raw_in_raw_out_and_typed_in_typed_out(echo: Called) -> None:
    assert CASES.pop("raw in => raw out")["want"] == "outputs as raw_output_contents"
    raw = ask(echo, infer(raw_input_contents=[b"\x01\xff"]))
    assert list(raw.raw_output_contents) == [b"\x01\xff"] * 3
    assert not any(output.HasField("contents") for output in raw.outputs)
    typed = infer()
    typed.inputs[0].contents.int_contents.extend([1, -1])
    answer = ask(echo, typed)
    assert not answer.raw_output_contents
    assert [list(output.contents.int_contents) for output in answer.outputs] == [[1, -1]] * 3
    assert [(output.name, output.datatype, list(output.shape)) for output in answer.outputs] == [
        (name, "INT8", [2]) for name in ("x", "y0", "y1")
    ]


def test_int8_of_300(echo: Called) -> None:
    assert CASES.pop("int8 value 300 in int_contents")["want"] == "INVALID_ARGUMENT"
    message = infer()
    message.inputs[0].contents.int_contents.extend([1, 300])
    assert refused(echo, message) == (
        "INVALID_ARGUMENT",
        "inputs[0].contents.int_contents: 300 does not fit INT8",
    )


def test_contents_of_another_length(echo: Called) -> None:
    assert CASES.pop("contents length differs from shape")["want"] == "INVALID_ARGUMENT"
    message = infer(shape=(2**40,))
    message.inputs[0].contents.int_contents.append(1)
    assert refused(echo, message)[0] == "INVALID_ARGUMENT"
    status, told = refused(echo, infer(shape=(3,), raw_input_contents=[b"\x00\x00"]))
    assert status == "INVALID_ARGUMENT"
    assert told == "raw_input_contents[0]: shape [3] of INT8 is 3 bytes, 2 are there"


def test_unknown_model(echo: Called) -> None:
    assert CASES.pop("unknown model")["want"] == "NOT_FOUND"
    for model, version in (("other", ""), ("echo", "7"), ("a/b", ""), ("echo", "1/2")):
        message = infer(model=model, model_version=version, raw_input_contents=[b"\x01\x02"])
        assert refused(echo, message)[0] == "NOT_FOUND"
        assert refused(echo, pb.ModelMetadataRequest(name=model, version=version), "ModelMetadata")[0] == "NOT_FOUND"
    assert refused(echo, infer(model="", raw_input_contents=[b"\x01\x02"]))[0] == "INVALID_ARGUMENT"


def test_not_ready() -> None:
    assert CASES.pop("model not ready")["want"] == "UNAVAILABLE"
    with called(Engine(lambda: Echo([]), FunctionSettings())) as server:
        assert refused(server, infer(raw_input_contents=[b"\x01\x02"]))[0] == "UNAVAILABLE"
        with server.client() as client:
            assert client.is_server_live()
            assert not client.is_server_ready()
            assert not client.is_model_ready("echo")


def test_no_row_is_left() -> None:
    assert not CASES


# What Triton's client does.


def test_what_triton_s_client_asks(echo: Called) -> None:
    with echo.client() as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("echo")
        server = client.get_server_metadata(as_json=True)
        assert server["name"] == "relight"
        assert {"binary_tensor_data", "classification", "model_repository"} <= set(server["extensions"])
        assert "model_configuration" in server["extensions"]
        described = client.get_model_metadata("echo", as_json=True)
        assert described["inputs"] == [{"name": "x", "datatype": "INT8", "shape": ["-1"]}]
        index = client.get_model_repository_index(as_json=True)
        assert index["models"] == [{"name": "echo", "state": "READY"}]
        client.load_model("echo")
        before = client.get_inference_statistics("echo").model_stats[0]
        given = triton.InferInput("x", [3], "INT8").set_data_from_numpy(np.array([1, 2, 3], np.int8))
        answer = client.infer("echo", [given], request_id="seven", outputs=[triton.InferRequestedOutput("y0")])
        assert answer.get_response().id == "seven"
        assert answer.as_numpy("y0").tolist() == [1, 2, 3]
        assert answer.as_numpy("y1") is None
        ranked = client.infer("echo", [given], outputs=[triton.InferRequestedOutput("y0", class_count=2)])
        assert ranked.as_numpy("y0").tolist() == [b"3.000000:2", b"2.000000:1"]
        after = client.get_inference_statistics().model_stats[0]
        assert after.inference_count - before.inference_count == 2
        assert after.inference_stats.success.count - before.inference_stats.success.count == 2
        assert after.inference_stats.compute_infer.ns > before.inference_stats.compute_infer.ns


def test_a_function_s_own_model_is_unloaded_and_loaded() -> None:
    with called(Echo([TensorSpec("x", "INT8", (-1,))]), RELIGHT_MODEL="echo") as here, here.client() as client:
        client.unload_model("echo")
        assert not client.is_model_ready("echo")
        assert refused(here, infer(raw_input_contents=[b"\x01\x02"]))[0] == "UNAVAILABLE"
        client.load_model("echo")
        assert client.is_model_ready("echo")


@pytest.mark.parametrize("way", ["raw", "typed"])
def test_every_datatype(way: str) -> None:
    with called(All(), RELIGHT_MODEL="all") as server:
        message = pb.ModelInferRequest(model_name="all")
        sent = {}
        for row in DATATYPES:
            name = row["v2"]
            tensor = message.inputs.add(name=name, datatype=name, shape=[2])
            given = triton.InferInput(name, [2], name)
            if name == "BYTES":
                given.set_data_from_numpy(np.array(VALUES[name], dtype=object))
            elif name == "BF16":
                bits = np.array(VALUES[name], "<f4").view("<u4") >> 16
                given._raw_content = bits.astype("<u2").tobytes()
            else:
                given.set_data_from_numpy(np.array(VALUES[name], dtype=row["numpy"]))
            sent[name] = given._get_content()
            if way == "typed" and row["grpc_contents"]:
                getattr(tensor.contents, row["grpc_contents"]).extend(VALUES[name])
        if way == "raw":
            message.raw_input_contents.extend(sent.values())
            answer = ask(server, message)
            assert list(answer.raw_output_contents) == list(sent.values())
            return
        # The two without a typed form have their own refusal, and the others are right.
        status, told = refused(server, message)
        assert status == "INVALID_ARGUMENT"
        assert told == "; ".join(
            f"inputs[{index}].contents: {row['v2']} has no typed form; send raw_input_contents"
            for index, row in enumerate(DATATYPES)
            if not row["grpc_contents"]
        )


@pytest.mark.parametrize("row", [row for row in DATATYPES if row["grpc_contents"]], ids=lambda row: row["v2"])
def test_typed_values_go_and_come_in_their_field(row: dict[str, Any]) -> None:
    name, contents = row["v2"], row["grpc_contents"]
    with called(Echo([TensorSpec("x", name, (-1,))]), RELIGHT_MODEL="echo") as server:
        message = infer(name)
        getattr(message.inputs[0].contents, contents).extend(VALUES[name])
        answer = ask(server, message)
        np.testing.assert_array_equal(list(getattr(answer.outputs[0].contents, contents)), VALUES[name])
        stray = infer(name)
        other = "fp64_contents" if name == "BYTES" else "bytes_contents"
        getattr(stray.inputs[0].contents, other).extend([0.0, 0.0] if name == "BYTES" else [b"", b""])
        assert refused(server, stray) == (
            "INVALID_ARGUMENT",
            f"inputs[0].contents: {name} comes in {contents}, not in {other}",
        )


def test_all_mistakes_at_once(echo: Called) -> None:
    message = pb.ModelInferRequest(model_name="echo")
    message.inputs.add(name="x", datatype="FP32", shape=[-1])
    message.inputs.add(name="z", datatype="FP32", shape=[1])
    message.parameters["empty"].SetInParent()
    message.outputs.add(name="none").parameters["classification"].string_param = "two"
    status, told = refused(echo, message)
    assert status == "INVALID_ARGUMENT"
    assert told == "; ".join(
        [
            "inputs[0].datatype: input 'x' is INT8, got FP32",
            "inputs[0].shape: [-1] has a negative dimension",
            "inputs[1].name: the model has no input 'z'; it has 'x'",
            "parameters.empty: has no value of a kind that is known here",
            "outputs[0].name: the model has no output 'none'; it has 'x', 'y0', 'y1'",
        ]
    )


def test_what_is_no_message(echo: Called) -> None:
    with grpc.insecure_channel(echo.url) as channel:
        for path in ("/inference.GRPCInferenceService/ModelInfer", "/grpc.health.v1.Health/Check"):
            with pytest.raises(grpc.RpcError) as raised:
                channel.unary_unary(path)(b"\xff\xff", timeout=5)
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_trailers_tell_the_time_and_the_caller_s_id(echo: Called) -> None:
    with grpc.insecure_channel(echo.url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        message = infer(raw_input_contents=[b"\x01\x02"])
        answer, call = stub.ModelInfer.with_call(message, metadata=(("x-request-id", "r-1"),), timeout=10)
        trailers = dict(call.trailing_metadata())
    assert answer.id == "r-1"
    assert trailers["x-request-id"] == "r-1"
    assert trailers["server-timing"].startswith("queue;dur=")


# Limits and faults.


def test_a_message_over_the_limit() -> None:
    with called(Echo([TensorSpec("x", "INT8", (-1,))]), RELIGHT_MODEL="echo", RELIGHT_MAX_BODY_BYTES="10000") as server:
        large = infer(shape=(20_000,), raw_input_contents=[b"\x00" * 20_000])
        assert refused(server, large)[0] == "RESOURCE_EXHAUSTED"
        with grpc.insecure_channel(server.url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            with pytest.raises(grpc.RpcError) as raised:
                stub.ModelInfer(large, compression=grpc.Compression.Gzip, timeout=10)
            assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            small = infer(shape=(2000,), raw_input_contents=[b"\x00" * 2000])
            answer = stub.ModelInfer(small, compression=grpc.Compression.Gzip, timeout=10)
            assert answer.raw_output_contents[0] == b"\x00" * 2000


class Gated(Model):
    """Computes when it is let."""

    inputs = (TensorSpec("x", "INT8", (-1,)),)
    outputs = (TensorSpec("y", "INT8", (-1,)),)

    def load(self) -> None:
        self.entered = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.seen: list[list[int]] = []

    def infer(self, inputs: dict[str, Array]) -> dict[str, Array]:
        self.seen.append(inputs["x"].tolist())
        self.entered.release()
        assert self.go.acquire(timeout=10)
        return {"y": inputs["x"]}


def started(server: Called, channel: grpc.Channel, value: int) -> Any:
    """A call that is under way."""
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    return stub.ModelInfer.future(infer(shape=(1,), model="gated", raw_input_contents=[bytes([value])]), timeout=10)


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does and tells nobody of."""
    for _ in range(1000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("never came true")


def test_a_cancelled_call_takes_its_job_with_it() -> None:
    model = Gated()
    with called(model, RELIGHT_MODEL="gated") as server, grpc.insecure_channel(server.url) as channel:
        first = started(server, channel, 1)
        assert model.entered.acquire(timeout=10)
        cancelled, third = started(server, channel, 2), None
        until(lambda: server.engine.models.queued == 1)
        third = started(server, channel, 3)
        until(lambda: server.engine.models.queued == 2)
        cancelled.cancel()
        until(lambda: b'relight_requests_total{code="499"} 1.0' in server.engine.metrics.render())
        model.go.release(2)
        assert first.result().raw_output_contents[0] == b"\x01"
        assert third.result().raw_output_contents[0] == b"\x03"
        assert model.seen == [[1], [3]]


def test_a_passed_deadline_takes_its_job_with_it() -> None:
    model = Gated()
    with called(model, RELIGHT_MODEL="gated") as server, grpc.insecure_channel(server.url) as channel:
        first = started(server, channel, 1)
        assert model.entered.acquire(timeout=10)
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as raised:
            stub.ModelInfer(infer(shape=(1,), model="gated", raw_input_contents=[b"\x02"]), timeout=0.2)
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        until(lambda: b'relight_requests_total{code="499"} 1.0' in server.engine.metrics.render())
        model.go.release()
        first.result()
        assert model.seen == [[1]]


def test_a_full_queue_says_when_to_come_back() -> None:
    model = Gated()
    with (
        called(model, RELIGHT_MODEL="gated", RELIGHT_QUEUE_LIMIT="1") as server,
        grpc.insecure_channel(server.url) as channel,
    ):
        first = started(server, channel, 1)
        assert model.entered.acquire(timeout=10)
        second = started(server, channel, 2)
        until(lambda: server.engine.models.queued == 1)
        refused = started(server, channel, 3)
        assert refused.exception().code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(refused.trailing_metadata())["grpc-retry-pushback-ms"] == "1000"
        model.go.release(2)
        first.result()
        second.result()


class Raises(Model):
    inputs = (TensorSpec("x", "INT8", (-1,)),)
    outputs = inputs

    def infer(self, inputs: dict[str, Array]) -> dict[str, Array]:
        if inputs["x"][0] == 1:
            raise SystemExit(3)
        raise ValueError("the caller's secret")


def test_what_a_model_raises_stays_in_the_log() -> None:
    with called(Raises(), RELIGHT_MODEL="echo") as server:
        for value in (b"\x00", b"\x01"):
            status, told = refused(server, infer(shape=(1,), raw_input_contents=[value]))
            assert status == "INTERNAL"
            assert "secret" not in told
        with server.client() as client:
            assert client.is_server_live()
            assert client.get_inference_statistics("echo").model_stats[0].inference_stats.fail.count == 2


def test_nan_is_exact_in_both_ways() -> None:
    bits = np.array([0x7FC00001, 0x7F800000, 0xFF800000, 0x80000000], "<u4").view("<f4")
    with called(Constant(o=("FP32", bits)), RELIGHT_MODEL="m") as server:
        message = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"\x01"])
        message.inputs.add(name="i", datatype="BOOL", shape=[1])
        assert ask(server, message).raw_output_contents[0] == bits.tobytes()
        message.ClearField("raw_input_contents")
        message.inputs[0].contents.bool_contents.append(True)
        np.testing.assert_array_equal(list(ask(server, message).outputs[0].contents.fp32_contents), bits)


def test_a_typed_answer_with_fp16_is_raw() -> None:
    outputs = {"a": ("FP32", np.ones(1, "<f4")), "b": ("FP16", np.ones(1, "<f2"))}
    with called(Constant(**outputs), RELIGHT_MODEL="m") as server:
        message = pb.ModelInferRequest(model_name="m")
        message.inputs.add(name="i", datatype="BOOL", shape=[1]).contents.bool_contents.append(True)
        assert list(ask(server, message).raw_output_contents) == [b"\x00\x00\x80?", b"\x00<"]


# Errors, as data.


def leaves(root: type[errors.RelightError] = errors.RelightError) -> Iterator[type[errors.RelightError]]:
    if root.__module__ == errors.__name__:
        yield root
    for child in root.__subclasses__():
        yield from leaves(child)


STATUSES = {
    errors.BadInput: "INVALID_ARGUMENT",
    errors.TooLarge: "RESOURCE_EXHAUSTED",
    errors.NotFound: "NOT_FOUND",
    errors.Overloaded: "RESOURCE_EXHAUSTED",
    errors.NotReady: "UNAVAILABLE",
    errors.LoadFailed: "UNAVAILABLE",
    errors.Deadline: "DEADLINE_EXCEEDED",
    errors.Failed: "INTERNAL",
}


@pytest.mark.parametrize(("error", "want"), STATUSES.items(), ids=lambda value: getattr(value, "__name__", value))
def test_status(error: type[errors.RelightError], want: str) -> None:
    status = grpcstatus.of_error(error("why"))
    assert next(code.name for code in grpc.StatusCode if code.value[0] == status) == want


def test_no_error_is_left_to_chance() -> None:
    assert {leaf.status for leaf in leaves()} - {500} <= set(grpcstatus._BY_HTTP)


# Health, as Kubernetes' probe asks.


def health(channel: grpc.Channel, service: str = "") -> str:
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    data = check(HEALTH["HealthCheckRequest"](service=service).SerializeToString(), timeout=5)
    return HEALTH["HealthCheckResponse"].ServingStatus.Name(HEALTH["HealthCheckResponse"].FromString(data).status)


def test_health_tells_the_truth() -> None:
    held = threading.Event()

    class Slow(Echo):
        def load(self) -> None:
            assert held.wait(10)

    engine = Engine(lambda: Slow([TensorSpec("x", "INT8", (-1,))]), FunctionSettings())
    with called(engine) as server, grpc.insecure_channel(server.url) as channel:
        engine.start()
        watched = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=20)
        statuses = (HEALTH["HealthCheckResponse"].FromString(data).status for data in watched)
        assert next(statuses) == 2
        assert [health(channel, name) for name in ("", "readiness", "liveness")] == [
            "NOT_SERVING",
            "NOT_SERVING",
            "SERVING",
        ]
        held.set()
        assert next(statuses) == 1
        assert health(channel, "inference.GRPCInferenceService") == "SERVING"
        with pytest.raises(grpc.RpcError) as raised:
            health(channel, "other")
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND
        engine.drain()
        assert next(statuses) == 2
        assert health(channel) == "NOT_SERVING"
        watched.cancel()


# The messages are those of the published service.


def fields(message: Descriptor) -> Iterator[tuple[str, FieldDescriptor]]:
    yield from message.fields_by_name.items()


@pytest.mark.parametrize("name", sorted(INFERENCE._classes))
def test_messages_are_the_published_ones(name: str) -> None:
    ours: Descriptor = INFERENCE[name].DESCRIPTOR
    theirs: Descriptor = pb.DESCRIPTOR.pool.FindMessageTypeByName(f"inference.{name}")
    for field_name, field in fields(ours):
        other = theirs.fields_by_name[field_name]
        assert (field.number, field.type, field.is_repeated) == (other.number, other.type, other.is_repeated)
        if field.message_type is not None:
            assert field.message_type.full_name == other.message_type.full_name
        assert (field.containing_oneof is None) == (other.containing_oneof is None)
    missing = set(theirs.fields_by_name) - set(ours.fields_by_name)
    assert missing <= {"response_stats"}
