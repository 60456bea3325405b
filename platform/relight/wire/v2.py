"""The Open Inference Protocol (V2) over HTTP: requests, answers, metadata and errors; JSON and binary tensors.

A request is read with the model's own specifications at hand, so that all its mistakes are reported at once, each by
its field path. The binary form is the "binary tensor data" extension: a JSON header of
``Inference-Header-Content-Length`` bytes, then the tensors' bytes in the order of the header; a length of 0 means that
the whole body is the bytes of the model's only input.

An output that has no JSON form (FP16, BF16, BYTES that are not UTF-8) is sent in the binary form even when nobody asked
for it, and the answer's headers say so.

The same requests come by gRPC as messages (``v2grpc``); what both have in common is in ``inference``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import msgspec
import orjson

from relight.base.errors import BadInput, Failed, Problem, RelightError
from relight.wire import tensors
from relight.wire.http import Headers, Request, Response
from relight.wire.inference import InferRequest as InferRequest
from relight.wire.inference import Parameter, answered, fit, not_missing, pick
from relight.wire.tensors import ANY, Array, TensorSpec
from relight.wire.v2mistakes import MOST, mistakes, refusal, shown

JSON = "application/json"
BINARY = "application/octet-stream"
HEADER_LENGTH = "inference-header-content-length"
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
)


class Form(Protocol):
    """A way of writing requests and answers. ``batched``: the first dimension of the model's tensors is a batch."""

    @property
    def extensions(self) -> Sequence[str]:
        """What is understood beyond the protocol's core by who speaks this way."""
        ...

    def decode(
        self, request: Request, *, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], batched: bool
    ) -> InferRequest:
        """Read a request for a model of these inputs and outputs. BadInput names every mistake of it."""
        ...

    def encode(
        self,
        name: str,
        version: str | None,
        request: InferRequest,
        outputs: Mapping[str, Array],
        specs: Sequence[TensorSpec],
        *,
        batched: bool,
    ) -> Response:
        """The answer: the outputs that were asked for, in the form that was asked for."""
        ...

    def failure(self, error: RelightError) -> Response:
        """The answer that tells of an error."""
        ...


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
    headers: Headers,
    body: bytes,
    *,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    batched: bool = False,
) -> InferRequest:
    """Read an inference request for a model of these inputs and outputs. BadInput names every mistake of it.

    ``batched`` (the first dimension is a batch) matters where the body is tensor bytes alone.
    """
    length = headers.get(HEADER_LENGTH)
    if length == "0":
        return InferRequest(inputs=_only_input(inputs, body, batched), binary=True)
    head, tail = _split(length, body)
    try:
        envelope = _envelope.decode(head)
    except msgspec.ValidationError as error:
        found = mistakes(msgspec.json.decode(head))
        raise refusal(found or [Problem("", f"the request is not one of the protocol: {error}")]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"the body is not JSON: {error}") from None
    problems: list[Problem] = []
    arrays = _read_inputs(envelope.inputs, tail, inputs, problems)
    default = envelope.parameters.get("binary_data_output") is True
    asked = ((output.name, output.parameters) for output in envelope.outputs)
    wanted = pick(asked, outputs, default, problems)
    if problems:
        raise refusal(problems)
    return InferRequest(inputs=arrays, id=envelope.id, parameters=envelope.parameters, outputs=wanted, binary=default)


def with_id(request: InferRequest, request_id: str | None) -> InferRequest:
    """The request with an id that came another way than in its body."""
    return msgspec.structs.replace(request, id=request_id)


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
    return view[:size], view[size:]


def _only_input(specs: Sequence[TensorSpec], body: bytes, batched: bool) -> dict[str, Array]:
    """The model's only input from a body that is nothing but its bytes: a batch of one, at most one size unknown.

    Of BYTES it is one element, without a length before it.
    """
    if len(specs) != 1:
        raise BadInput(f"a body of tensor bytes alone is for models of one input; this one has {len(specs)}")
    spec = specs[0]
    size = tensors.size_of(spec.datatype)
    shape = list(spec.shape)
    if batched and shape and shape[0] == ANY:
        shape[0] = 1
    open_ends = [axis for axis, length in enumerate(shape) if length == ANY]
    if size is None:
        shape = [1 if length == ANY else length for length in shape]
        body = len(body).to_bytes(4, "little") + body
    elif open_ends:
        if len(open_ends) > 1:
            raise BadInput(
                f"the shape {list(spec.shape)} of {spec.name!r} does not follow from a body of {len(body)} bytes; "
                "send a JSON header before it"
            )
        row = size * abs(tensors.count(shape))
        # Where it does not divide, the comparison with the shape says so.
        shape[open_ends[0]] = len(body) // row if row else 0
    return {spec.name: tensors.from_bytes(spec.datatype, shape, body, f"the body as {spec.name!r}")}


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
                message = f"expected a number of bytes, got {shown(size)}"
                problems.append(Problem(f"{path}.parameters.binary_data_size", message))
                # Where the next tensor's bytes begin is unknown from here on.
                return arrays
            if at + size > len(tail):
                message = f"{shown(tensor.name)} promises {size} bytes of binary data, {len(tail) - at} are there"
                problems.append(Problem(f"{path}.parameters.binary_data_size", message))
                return arrays
            raw = tail[at : at + size]
            at += size
        spec = fit(tensor.name, tensor.datatype, tensor.shape, known, seen, path, problems)
        if len(problems) > MOST:
            return arrays
        if spec is None:
            continue
        try:
            arrays[tensor.name] = _read_data(tensor, raw, path)
        except BadInput as error:
            problems.extend(error.problems)
    if at < len(tail):
        problems.append(Problem("", f"{len(tail) - at} bytes follow the last binary tensor"))
    not_missing(known, seen, problems)
    return arrays


def _read_data(tensor: _Tensor, raw: memoryview | None, path: str) -> Array:
    data = bytes(tensor.data)
    if raw is None and not data:
        raise BadInput.of([Problem(f"{path}.data", "missing, and there is no binary_data_size either")])
    if raw is not None and data:
        raise BadInput.of([Problem(f"{path}.data", "given twice: as JSON and as binary data")])
    if raw is not None:
        return tensors.from_bytes(tensor.datatype, tensor.shape, raw, path)
    return tensors.from_json(tensor.datatype, tensor.shape, data, path)


def encode_response(
    name: str,
    version: str | None,
    request: InferRequest,
    outputs: Mapping[str, Array],
    specs: Sequence[TensorSpec],
    *,
    batched: bool = False,
) -> tuple[tuple[tuple[str, str], ...], bytes]:
    """Headers and body of an answer: the outputs that were asked for, in the form that was asked for."""
    entries: list[_Entry] = []
    data: list[Any] = []
    blobs: list[bytes] = []
    for want, datatype, array in answered(request, outputs, specs, batched):
        if want.binary or not tensors.has_json(array, datatype):
            blob = tensors.to_bytes(array, datatype)
            entries.append((want.name, datatype, array.shape, len(blob)))
            blobs.append(blob)
        else:
            entries.append((want.name, datatype, array.shape, None))
            data.append(tensors.to_json(array))
    if not blobs:
        return (("content-type", JSON),), _head(name, version, request.id, entries, data)
    if data or request.id is not None:
        head = _head(name, version, request.id, entries, data)
    else:
        head = _repeated(name, version, tuple(entries))
    return (("content-type", BINARY), (HEADER_LENGTH, str(len(head)))), b"".join((head, *blobs))


_Entry = tuple[str, str, tuple[int, ...], int | None]
"""Name, datatype and shape of an output, and its bytes where it is in the binary form."""


def _head(
    name: str, version: str | None, request_id: str | None, entries: Sequence[_Entry], data: Sequence[Any]
) -> bytes:
    """The JSON of an answer; ``data`` of those outputs that are not in the binary form, in order."""
    values = iter(data)
    rendered = []
    for output, datatype, shape, size in entries:
        entry: dict[str, Any] = {"name": output, "datatype": datatype, "shape": list(shape)}
        if size is None:
            entry["data"] = next(values)
        else:
            entry["parameters"] = {"binary_data_size": size}
        rendered.append(entry)
    return dump(_named(name, version, request_id) | {"outputs": rendered})


@lru_cache(maxsize=256)
def _repeated(name: str, version: str | None, entries: tuple[_Entry, ...]) -> bytes:
    """The JSON of an answer that is binary as a whole: the same for all answers of these shapes."""
    return _head(name, version, None, entries, ())


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


def server_metadata(name: str, version: str, extensions: Sequence[str]) -> dict[str, Any]:
    return {"name": name, "version": version, "extensions": list(extensions)}


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
