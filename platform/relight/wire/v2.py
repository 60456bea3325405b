"""The Open Inference Protocol (V2) over HTTP: requests, answers, metadata and errors; JSON and binary tensors.

A request is read with the model's own specifications at hand, so that all its mistakes are reported at once, each by
its field path. The binary form is the "binary tensor data" extension: a JSON header of
``Inference-Header-Content-Length`` bytes, then the tensors' bytes in the order of the header.

An output that has no JSON form (FP16, BF16, BYTES that are not UTF-8) is sent in the binary form even when nobody asked
for it, and the answer's headers say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import orjson

from relight.base.errors import BadInput, Failed, Problem, RelightError
from relight.wire import tensors
from relight.wire.http import Headers
from relight.wire.tensors import Array, TensorSpec

JSON = "application/json"
BINARY = "application/octet-stream"
HEADER_LENGTH = "inference-header-content-length"
EXTENSIONS = ("binary_tensor_data", "model_configuration", "model_repository", "statistics")

Parameter = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """One output that the request asks for, and in which form."""

    name: str
    binary: bool


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request whose tensors fit the model. ``outputs`` empty: all of them, in ``binary`` form or not."""

    inputs: dict[str, Array]
    id: str | None = None
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    outputs: tuple[Wanted, ...] = ()
    binary: bool = False


class _Tensor(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    data: msgspec.Raw = msgspec.Raw(b"")
    parameters: dict[str, Parameter] = {}


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Parameter] = {}


class _Envelope(msgspec.Struct):
    inputs: list[_Tensor]
    id: str | None = None
    parameters: dict[str, Parameter] = {}
    outputs: list[_Output] = []


_envelope = msgspec.json.Decoder(_Envelope)


def decode_request(
    headers: Headers, body: bytes, *, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> InferRequest:
    """Read an inference request for a model of these inputs and outputs. BadInput names every mistake of it."""
    head, tail = _split(headers.get(HEADER_LENGTH), body)
    try:
        envelope = _envelope.decode(head)
    except msgspec.ValidationError as error:
        raise BadInput.of(
            _mistakes(head) or [Problem("", f"the request is not one of the protocol: {error}")]
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"the body is not JSON: {error}") from None
    problems: list[Problem] = []
    arrays = _read_inputs(envelope.inputs, tail, inputs, problems)
    wanted = _read_outputs(envelope, outputs, problems)
    if problems:
        raise BadInput.of(problems)
    return InferRequest(
        inputs=arrays,
        id=envelope.id,
        parameters=envelope.parameters,
        outputs=wanted,
        binary=envelope.parameters.get("binary_data_output") is True,
    )


def with_id(request: InferRequest, request_id: str | None) -> InferRequest:
    """The request with an id that came another way than in its body."""
    return replace(request, id=request_id)


def parse(body: bytes) -> Any:
    """JSON as strict parsers read it; BadInput says where it is none."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"the body is not JSON: {error}") from None


def _split(length: str | None, body: bytes) -> tuple[bytes | memoryview, memoryview]:
    view = memoryview(body)
    if length is None:
        return body, view[:0]
    path = "Inference-Header-Content-Length"
    if not (length.isascii() and length.isdecimal()):
        raise BadInput.of([Problem(path, f"expected a number of bytes, got {length[:40]!r}")])
    size = int(length) if len(length) < 20 else len(body) + 1
    if size > len(body):
        raise BadInput.of(
            [Problem(path, f"the JSON header is said to be {length[:40]} bytes, the body is {len(body)}")]
        )
    if size == 0:
        raise BadInput.of(
            [Problem(path, "a body of tensor bytes alone is not supported; send a JSON header before it")]
        )
    return view[:size], view[size:]


def _read_inputs(
    given: list[_Tensor], tail: memoryview, specs: Sequence[TensorSpec], problems: list[Problem]
) -> dict[str, Array]:
    known = {spec.name: spec for spec in specs}
    arrays: dict[str, Array] = {}
    seen: set[str] = set()
    at = 0
    for index, tensor in enumerate(given):
        path = f"inputs[{index}]"
        size = tensor.parameters.get("binary_data_size")
        raw: memoryview | None = None
        if size is not None:
            if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                message = f"expected a number of bytes, got {size!r}"
                problems.append(Problem(f"{path}.parameters.binary_data_size", message))
                # Where the next tensor's bytes begin is unknown from here on.
                return arrays
            if at + size > len(tail):
                message = f"{tensor.name!r} promises {size} bytes of binary data, {len(tail) - at} are there"
                problems.append(Problem(f"{path}.parameters.binary_data_size", message))
                return arrays
            raw = tail[at : at + size]
            at += size
        if tensor.name in seen:
            problems.append(Problem(f"{path}.name", f"there are two inputs named {tensor.name!r}"))
            continue
        seen.add(tensor.name)
        spec = known.get(tensor.name)
        if spec is None:
            names = ", ".join(map(repr, known)) or "no inputs"
            problems.append(Problem(f"{path}.name", f"the model has no input {tensor.name!r}; it has {names}"))
            continue
        try:
            arrays[tensor.name] = _read_tensor(tensor, raw, spec, path)
        except BadInput as error:
            problems.extend(error.problems)
    if at < len(tail):
        problems.append(Problem("", f"{len(tail) - at} bytes follow the last binary tensor"))
    missing = [name for name, spec in known.items() if name not in seen and not spec.optional]
    if missing:
        problems.append(Problem("inputs", f"missing {', '.join(map(repr, missing))}"))
    return arrays


def _read_tensor(tensor: _Tensor, raw: memoryview | None, spec: TensorSpec, path: str) -> Array:
    problems = []
    if tensor.datatype not in tensors.DATATYPES:
        problems.append(Problem(f"{path}.datatype", f"{tensor.datatype!r} is not one of {tensors.expected()}"))
    elif tensor.datatype != spec.datatype:
        message = f"input {tensor.name!r} is {spec.datatype}, got {tensor.datatype}"
        problems.append(Problem(f"{path}.datatype", message))
    if any(size < 0 for size in tensor.shape):
        problems.append(Problem(f"{path}.shape", f"{tensor.shape} has a negative dimension"))
    elif not spec.accepts(tensor.shape):
        message = f"input {tensor.name!r} takes {list(spec.shape)}, got {tensor.shape}"
        problems.append(Problem(f"{path}.shape", message))
    data = bytes(tensor.data)
    if raw is None and not data:
        problems.append(Problem(f"{path}.data", "missing, and there is no binary_data_size either"))
    if raw is not None and data:
        problems.append(Problem(f"{path}.data", "given twice: as JSON and as binary data"))
    if problems:
        raise BadInput.of(problems)
    if raw is not None:
        return tensors.from_bytes(tensor.datatype, tensor.shape, raw, path)
    return tensors.from_json(tensor.datatype, tensor.shape, data, path)


def _read_outputs(envelope: _Envelope, specs: Sequence[TensorSpec], problems: list[Problem]) -> tuple[Wanted, ...]:
    known = {spec.name for spec in specs}
    default = envelope.parameters.get("binary_data_output") is True
    wanted: dict[str, Wanted] = {}
    for index, output in enumerate(envelope.outputs):
        if output.name not in known:
            names = ", ".join(repr(spec.name) for spec in specs)
            message = f"the model has no output {output.name!r}; it has {names}"
            problems.append(Problem(f"outputs[{index}].name", message))
        elif output.name in wanted:
            problems.append(Problem(f"outputs[{index}].name", f"{output.name!r} is asked for twice"))
        wanted[output.name] = Wanted(output.name, output.parameters.get("binary_data", default) is True)
    return tuple(wanted.values())


def _mistakes(head: bytes | memoryview) -> list[Problem]:
    """Every mistake in the form of a request that the typed decoder refused at the first one."""
    body = msgspec.json.decode(head)
    if not isinstance(body, dict):
        return [Problem("", f"expected a JSON object, got {_kind(body)}")]
    found = list(_wrong_parameters(body, ""))
    if not isinstance(body.get("id"), str | None):
        found.append(Problem("id", f"expected a string, got {_kind(body['id'])}"))
    if "inputs" not in body:
        found.append(Problem("inputs", "missing"))
    for field_name, check in (("inputs", _wrong_input), ("outputs", _wrong_output)):
        items = body.get(field_name, [])
        if not isinstance(items, list):
            found.append(Problem(field_name, f"expected an array, got {_kind(items)}"))
            continue
        for index, item in enumerate(items):
            path = f"{field_name}[{index}]"
            if isinstance(item, dict):
                found.extend(check(item, path))
            else:
                found.append(Problem(path, f"expected an object, got {_kind(item)}"))
    return found


def _wrong_input(item: dict[str, Any], path: str) -> Iterable[Problem]:
    for name in ("name", "datatype"):
        if not isinstance(item.get(name), str):
            yield Problem(f"{path}.{name}", f"expected a string, got {_kind(item.get(name))}")
    shape = item.get("shape")
    if not isinstance(shape, list):
        yield Problem(f"{path}.shape", f"expected an array of integers, got {_kind(shape)}")
    elif any(isinstance(size, bool) or not isinstance(size, int) for size in shape):
        yield Problem(f"{path}.shape", f"expected integers, got {shape}"[:200])
    yield from _wrong_parameters(item, f"{path}.")


def _wrong_output(item: dict[str, Any], path: str) -> Iterable[Problem]:
    if not isinstance(item.get("name"), str):
        yield Problem(f"{path}.name", f"expected a string, got {_kind(item.get('name'))}")
    yield from _wrong_parameters(item, f"{path}.")


def _wrong_parameters(item: dict[str, Any], prefix: str) -> Iterable[Problem]:
    parameters = item.get("parameters", {})
    if not isinstance(parameters, dict):
        yield Problem(f"{prefix}parameters", f"expected an object, got {_kind(parameters)}")
        return
    for name, value in parameters.items():
        if not isinstance(value, str | int | float):
            message = f"expected a string, a number or a boolean, got {_kind(value)}"
            yield Problem(f"{prefix}parameters.{name}", message)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", int: "a number"}
    return "nothing" if value is None else names.get(type(value), "a number")


def encode_response(
    name: str,
    version: str | None,
    request: InferRequest,
    outputs: Mapping[str, Array],
    specs: Sequence[TensorSpec],
) -> tuple[tuple[tuple[str, str], ...], bytes]:
    """Headers and body of an answer: the outputs that were asked for, in the form that was asked for."""
    datatypes = {spec.name: spec.datatype for spec in specs}
    wanted = request.outputs or tuple(Wanted(spec.name, request.binary) for spec in specs)
    rendered, blobs = [], []
    for want in wanted:
        array, datatype = outputs[want.name], datatypes[want.name]
        entry: dict[str, Any] = {"name": want.name, "datatype": datatype, "shape": list(array.shape)}
        if want.binary or not tensors.has_json(array, datatype):
            blob = tensors.to_bytes(array, datatype)
            entry["parameters"] = {"binary_data_size": len(blob)}
            blobs.append(blob)
        else:
            entry["data"] = tensors.to_json(array)
        rendered.append(entry)
    head = dump(_named(name, version, request.id) | {"outputs": rendered})
    if not blobs:
        return (("content-type", JSON),), head
    return (("content-type", BINARY), (HEADER_LENGTH, str(len(head)))), b"".join((head, *blobs))


def response_json(
    name: str, version: str | None, outputs: Mapping[str, Array], specs: Sequence[TensorSpec]
) -> dict[str, Any]:
    """An answer as an object, for where there is no binary form: Failed names an output that has no JSON form."""
    rendered = []
    for spec in specs:
        array = outputs[spec.name]
        if not tensors.has_json(array, spec.datatype):
            raise Failed(f"the output {spec.name!r} ({spec.datatype}) has no JSON form")
        shape = list(array.shape)
        rendered.append({"name": spec.name, "datatype": spec.datatype, "shape": shape, "data": tensors.to_json(array)})
    return _named(name, version, None) | {"outputs": rendered}


def _named(name: str, version: str | None, request_id: str | None) -> dict[str, Any]:
    fields = {"model_name": name, "model_version": version, "id": request_id}
    return {key: value for key, value in fields.items() if value is not None}


def server_metadata(name: str, version: str) -> dict[str, Any]:
    return {"name": name, "version": version, "extensions": list(EXTENSIONS)}


def model_metadata(
    name: str,
    version: str | None,
    platform: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
) -> dict[str, Any]:
    """A model's metadata; without a version the field is left out, as the specification wants."""
    body: dict[str, Any] = {"name": name}
    if version is not None:
        body["versions"] = [version]
    return body | {"platform": platform, "inputs": _described(inputs), "outputs": _described(outputs)}


def _described(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    return [{"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)} for spec in specs]


def error_body(error: RelightError) -> bytes:
    """``{"error": "<sentence>"}``."""
    return dump({"error": error.message})


def dump(value: object) -> bytes:
    """JSON as all answers are written; numpy arrays included."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
