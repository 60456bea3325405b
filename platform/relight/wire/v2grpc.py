"""The Open Inference Protocol over gRPC: requests and answers as the messages of ``inference.GRPCInferenceService``.

Tensors come typed (``contents``) or as bytes (``raw_input_contents``), all of a request in one of the two ways; FP16
and BF16 have no typed form. The answer is written as the request was, except that an output without a typed form makes
the whole answer raw. Raw bytes are those of the binary form over HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf import json_format

from relight.base.errors import BadInput, Problem, RelightError
from relight.wire import grpcstatus, tensors, v2
from relight.wire.http import Request, Response
from relight.wire.inference import InferRequest, Parameter, Wanted, answered, fit, not_missing, pick
from relight.wire.tensors import Array, TensorSpec
from relight.wire.v2messages import INFERENCE
from relight.wire.v2mistakes import MOST, refusal, shown_shape

CONTENT_TYPE = "application/grpc"

_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
_FIELDS = tuple(dict.fromkeys(_CONTENTS.values()))


class GrpcForm:
    """One call, as the form of its request and answer. ``message`` is the ModelInferRequest of an inference."""

    extensions = v2.EXTENSIONS

    def __init__(self, message: Any = None) -> None:
        self._message = message

    def decode(
        self, request: Request, *, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], batched: bool
    ) -> InferRequest:
        """The message's tensors, for a model of these inputs and outputs. BadInput names every mistake of it."""
        message = self._message
        raw = list(message.raw_input_contents)
        problems: list[Problem] = []
        typed = [index for index, tensor in enumerate(message.inputs) if tensor.HasField("contents")]
        if raw and typed:
            told = "raw_input_contents is there too; all tensors come in one way"
            problems += [Problem(f"inputs[{index}].contents", told) for index in typed[: MOST + 1]]
        elif raw and len(raw) != len(message.inputs):
            told = f"{len(raw)} are there for {len(message.inputs)} inputs; expected one for each, in their order"
            problems.append(Problem("raw_input_contents", told))
        if problems:
            raise refusal(problems)
        arrays = _arrays(message.inputs, raw, inputs, problems)
        parameters = _parameters(message.parameters, "", problems)
        asked = [
            (output.name, _parameters(output.parameters, f"outputs[{index}].", problems))
            for index, output in enumerate(message.outputs)
        ]
        wanted = pick(asked, outputs, True, problems)
        if problems:
            raise refusal(problems)
        # With no bytes of any kind (only empty tensors) there is no way to follow: typed, as the protocol's first one.
        return InferRequest(
            inputs=arrays,
            id=message.id or None,
            parameters=parameters,
            outputs=tuple(Wanted(one.name, bool(raw), one.classes) for one in wanted),
            binary=bool(raw),
        )

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
        """A serialized ModelInferResponse."""
        message = INFERENCE["ModelInferResponse"](model_name=name, model_version=version or "", id=request.id or "")
        said = answered(request, outputs, specs, batched)
        raw = any(want.binary or datatype in tensors.BINARY_ONLY for want, datatype, _ in said)
        for want, datatype, array in said:
            tensor = message.outputs.add(name=want.name, datatype=datatype, shape=array.shape)
            if raw:
                message.raw_output_contents.append(tensors.to_bytes(array, datatype))
            else:
                values = array.ravel().tolist()
                if datatype == "BYTES":
                    values = [tensors.element_bytes(value) for value in values]
                getattr(tensor.contents, _CONTENTS[datatype]).extend(values)
        return Response(200, (("content-type", CONTENT_TYPE),), message.SerializeToString())

    def failure(self, error: RelightError) -> Response:
        """An answer without a message; its headers are the call's trailers. ``status`` is what metrics count by."""
        headers = (
            ("content-type", CONTENT_TYPE),
            ("grpc-status", str(grpcstatus.of_error(error))),
            ("grpc-message", error.message),
            *grpcstatus.pushback(error.retry_after),
        )
        return Response(error.status, headers)


def message_of(kind: str, body: object) -> Any:
    """A message from what the same question is answered over HTTP: its fields have the same names there."""
    return json_format.ParseDict(body, INFERENCE[kind](), ignore_unknown_fields=True, descriptor_pool=INFERENCE.pool)


def parameters_of(parameters: Mapping[str, Any]) -> dict[str, Parameter | bytes]:
    """The values of a message's ``parameters``; what is unset is left out."""
    kinds = {name: value.WhichOneof("parameter_choice") for name, value in parameters.items()}
    return {name: getattr(parameters[name], kind) for name, kind in kinds.items() if kind is not None}


def _parameters(parameters: Mapping[str, Any], prefix: str, problems: list[Problem]) -> dict[str, Parameter]:
    values = parameters_of(parameters)
    for name in parameters:
        if name not in values:
            problems.append(Problem(f"{prefix}parameters.{name[:80]}", "has no value of a kind that is known here"))
    return values  # type: ignore[return-value]  # An InferParameter holds no bytes.


def _arrays(
    given: Sequence[Any], raw: list[bytes], specs: Sequence[TensorSpec], problems: list[Problem]
) -> dict[str, Array]:
    known = {spec.name: spec for spec in specs}
    arrays: dict[str, Array] = {}
    seen: set[str] = set()
    for index, tensor in enumerate(given):
        path = f"inputs[{index}]"
        shape = list(tensor.shape)
        spec = fit(tensor.name, tensor.datatype, shape, known, seen, path, problems)
        _parameters(tensor.parameters, f"{path}.", problems)
        if len(problems) > MOST:
            return arrays
        if spec is None:
            continue
        try:
            if raw:
                arrays[spec.name] = tensors.from_bytes(spec.datatype, shape, raw[index], f"raw_input_contents[{index}]")
            else:
                arrays[spec.name] = _typed(spec.datatype, shape, tensor.contents, f"{path}.contents")
        except BadInput as error:
            problems.extend(error.problems)
    not_missing(known, seen, problems)
    return arrays


def _typed(datatype: str, shape: list[int], contents: Any, path: str) -> Array:
    if datatype in tensors.BINARY_ONLY:
        raise _bad(path, f"{datatype} has no typed form; send raw_input_contents")
    field = _CONTENTS[datatype]
    stray = [name for name in _FIELDS if name != field and len(getattr(contents, name))]
    if stray:
        raise _bad(path, f"{datatype} comes in {field}, not in {', '.join(stray)}")
    values = getattr(contents, field)
    promised = tensors.count(shape)
    if len(values) != promised:
        raise _bad(
            f"{path}.{field}", f"shape {shown_shape(shape)} promises {promised} elements, {len(values)} are there"
        )
    dtype = tensors.numpy_dtype(datatype)
    if dtype.kind == "O":
        array: Array = np.empty(promised, dtype=object)
        array[:] = list(values)
    elif dtype.itemsize < 4 and dtype.kind in "iu":
        wide = np.array(values, dtype=np.int64)
        limits = np.iinfo(dtype)
        for value in (wide.min(), wide.max()) if wide.size else ():
            if not limits.min <= value <= limits.max:
                raise _bad(f"{path}.{field}", f"{value} does not fit {datatype}")
        array = wide.astype(dtype)
    else:
        array = np.array(values, dtype=dtype)
    try:
        return array.reshape(shape)
    except ValueError:
        raise _bad(path, f"{shown_shape(shape)} is not a shape that an array can have") from None


def _bad(path: str, message: str) -> BadInput:
    return BadInput.of([Problem(path, message)])
