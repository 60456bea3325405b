"""Inference requests whose JSON headers repeat: what a header says is remembered, only the tensors' bytes are read.

A client that sends tensors in the binary form sends the same header again and again. Whether it fits the model follows
from the header, the model's specifications and the number of bytes behind it alone: where these three are as before,
so is the answer. Whatever is in the bytes is checked each time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from relight.base.errors import RelightError
from relight.wire import tensors, v2
from relight.wire.http import Headers, Request, Response
from relight.wire.tensors import Array, TensorSpec
from relight.wire.v2 import HEADER_LENGTH, Form, InferRequest

LONGEST = 1024
"""Bytes of a header that is remembered: those of large requests are not worth it."""
MOST = 256
"""Headers that are remembered, the newest ones."""


class _Parameters(msgspec.Struct):
    binary_data_size: int


class _Tensor(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: _Parameters


class _Binary(msgspec.Struct):
    """What of a header must be read again to cut the bytes; only where all inputs are binary."""

    inputs: list[_Tensor]


_binary = msgspec.json.Decoder(_Binary)


@dataclass(frozen=True, slots=True)
class _Known:
    request: InferRequest
    numbers: tuple[tuple[str, np.dtype[Any], list[int], int, int], ...]
    """Name, type, shape, number of elements and first byte of each input whose bytes are its values as they are."""
    others: tuple[tuple[str, str, list[int], int, int, str], ...]
    """Name, datatype, shape, first and last byte, and path of each other input."""
    specs: tuple[object, object]
    """Kept, so that their identities are not given to others."""


_known: OrderedDict[tuple[bytes, int, int, int], _Known] = OrderedDict()


def decode_request(
    headers: Headers,
    body: bytes,
    *,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    batched: bool = False,
) -> InferRequest:
    """As ``v2.decode_request``, whose answer it is where a header is new, or there is none.

    ``batched`` is no part of what is remembered: it matters only where the body is tensor bytes alone.
    """
    length = headers.get(HEADER_LENGTH)
    if length is None or len(length) > 4 or not length.isdecimal():
        return v2.decode_request(headers, body, inputs=inputs, outputs=outputs, batched=batched)
    size = int(length)
    key = (body[:size], len(body), id(inputs), id(outputs))
    known = _known.get(key)
    if known is None:
        request = v2.decode_request(headers, body, inputs=inputs, outputs=outputs, batched=batched)
        if 0 < size <= LONGEST:
            _remember(key, request, (inputs, outputs))
        return request
    arrays = {
        name: np.frombuffer(body, dtype, elements, start).reshape(shape)
        for name, dtype, shape, elements, start in known.numbers
    }
    for name, datatype, shape, start, stop, path in known.others:
        arrays[name] = tensors.from_bytes(datatype, shape, memoryview(body)[start:stop], path)
    same = known.request
    return InferRequest(arrays, same.id, same.parameters, same.outputs, same.binary)


def _remember(key: tuple[bytes, int, int, int], request: InferRequest, specs: tuple[Any, Any]) -> None:
    try:
        given = _binary.decode(key[0]).inputs
    except msgspec.ValidationError:
        return  # Not all of it is binary.
    numbers, others, at = [], [], len(key[0])
    for index, tensor in enumerate(given):
        end = at + tensor.parameters.binary_data_size
        elements = tensors.count(tensor.shape)
        if elements and tensors.is_plain(tensor.datatype):
            dtype = tensors.numpy_dtype(tensor.datatype)
            numbers.append((tensor.name, dtype, tensor.shape, elements, at))
        else:
            others.append((tensor.name, tensor.datatype, tensor.shape, at, end, f"inputs[{index}]"))
        at = end
    _known[key] = _Known(msgspec.structs.replace(request, inputs={}), tuple(numbers), tuple(others), specs)
    if len(_known) > MOST:
        _known.popitem(last=False)


class _Http:
    """JSON and binary tensors: the form of requests that come by HTTP."""

    extensions = v2.EXTENSIONS

    def decode(
        self, request: Request, *, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], batched: bool
    ) -> InferRequest:
        return decode_request(request.headers, request.body, inputs=inputs, outputs=outputs, batched=batched)

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
        headers, body = v2.encode_response(name, version, request, outputs, specs, batched=batched)
        return Response(200, headers, body)

    def failure(self, error: RelightError) -> Response:
        return Response(error.status, (("content-type", v2.JSON),), v2.error_body(error))


HTTP: Form = _Http()
