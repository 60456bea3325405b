"""A multilayer perceptron as the bytes of an ONNX file, written by hand: three kinds of fields are all it takes.

Protocol buffers are pairs of a key (number and kind of a field) and a value; numbers are variable-length integers,
everything else is bytes behind its length. Field numbers are those of ``onnx/onnx.proto``, IR version 8, opset 17.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

FLOAT = 1
"""``TensorProto.DataType.FLOAT``."""


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _node(operator: str, inputs: Sequence[str], output: str) -> bytes:
    names = b"".join(_bytes(1, name) for name in inputs)
    return _bytes(1, names + _bytes(2, output) + _bytes(4, operator))


def _weights(name: str, array: NDArray[np.float32]) -> bytes:
    shape = b"".join(_number(1, size) for size in array.shape)
    return _bytes(5, shape + _number(2, FLOAT) + _bytes(8, name) + _bytes(9, array.astype("<f4").tobytes()))


def _value(field: int, name: str, width: int) -> bytes:
    shape = _bytes(1, _bytes(2, "batch")) + _bytes(1, _number(1, width))
    return _bytes(field, _bytes(1, name) + _bytes(2, _bytes(1, _number(1, FLOAT) + _bytes(2, shape))))


def perceptron(sizes: Sequence[int], seed: int = 7) -> tuple[bytes, list[NDArray[np.float32]]]:
    """The file, and its weights and biases in turn: ``x`` [batch, sizes[0]] to ``y`` [batch, sizes[-1]].

    Layers are ``MatMul``, ``Add`` and, but for the last, ``Relu``.
    """
    random = np.random.default_rng(seed)
    weights: list[NDArray[np.float32]] = []
    nodes, tensors, at = b"", b"", "x"
    for layer, (width, height) in enumerate(pairwise(sizes)):
        last = layer == len(sizes) - 2
        scale, bias = random.normal(size=(width, height)) / width**0.5, random.normal(size=height)
        weights += [scale.astype(np.float32), bias.astype(np.float32)]
        tensors += _weights(f"w{layer}", weights[-2]) + _weights(f"b{layer}", weights[-1])
        nodes += _node("MatMul", [at, f"w{layer}"], f"m{layer}")
        nodes += _node("Add", [f"m{layer}", f"b{layer}"], "y" if last else f"a{layer}")
        at = f"a{layer}"
        if not last:
            nodes += _node("Relu", [at], f"r{layer}")
            at = f"r{layer}"
    graph = nodes + _bytes(2, "perceptron") + tensors + _value(11, "x", sizes[0]) + _value(12, "y", sizes[-1])
    model = _number(1, 8) + _bytes(2, "relight") + _bytes(7, graph) + _bytes(8, _bytes(1, "") + _number(2, 17))
    return model, weights


def computed(weights: Sequence[NDArray[np.float32]], x: NDArray[np.float32]) -> NDArray[np.float32]:
    """What the file computes, by numpy."""
    for layer in range(0, len(weights), 2):
        x = x @ weights[layer] + weights[layer + 1]
        if layer < len(weights) - 2:
            x = np.maximum(x, 0)
    return x
