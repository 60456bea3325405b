"""Small ONNX models, written byte by byte: there is no library here that writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

_ELEMENTS = {"FP32": 1, "INT64": 7, "BYTES": 8}


def _varint(number: int) -> bytes:
    out = bytearray()
    number &= 2**64 - 1
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _value(name: str, datatype: str, shape: Sequence[int | str]) -> bytes:
    dims = b"".join(_field(1, _field(2 if isinstance(size, str) else 1, size)) for size in shape)
    tensor = _field(1, _ELEMENTS[datatype]) + _field(2, dims)
    return _field(1, name) + _field(2, _field(1, tensor))


def _weights(name: str, array: np.ndarray) -> bytes:
    kind = 1 if array.dtype == np.float32 else 7
    dims = b"".join(_field(1, size) for size in array.shape)
    return dims + _field(2, kind) + _field(8, name) + _field(9, array.tobytes())


def _node(kind: str, inputs: Iterable[str], output: str) -> bytes:
    return b"".join(_field(1, name) for name in inputs) + _field(2, output) + _field(4, kind)


def _model(nodes: list[bytes], weights: list[bytes], inputs: list[bytes], outputs: list[bytes]) -> bytes:
    graph = b"".join(
        _field(number, item)
        for number, items in ((1, nodes), (5, weights), (11, inputs), (12, outputs))
        for item in items
    ) + _field(2, "tiny")
    return _field(1, 8) + _field(7, graph) + _field(8, _field(1, "") + _field(2, 13))


def scaling(factor: float, width: int = 4, batch: int | str = "n") -> bytes:
    """``y = factor * x``, as a product with a matrix of ``width`` squared numbers of four bytes."""
    matrix = np.eye(width, dtype=np.float32) * np.float32(factor)
    shape = [batch, width]
    return _model(
        [_node("MatMul", ["x", "w"], "y")],
        [_weights("w", matrix)],
        [_value("x", "FP32", shape)],
        [_value("y", "FP32", shape)],
    )


def passing(datatype: str, shape: Sequence[int | str]) -> bytes:
    """``y = x``."""
    return _model([_node("Identity", ["x"], "y")], [], [_value("x", datatype, shape)], [_value("y", datatype, shape)])


def put(repository: Path, name: str, version: int, model: bytes, config: str | None = None) -> Path:
    """Lay a model into a folder as Triton has it, the file whole at once."""
    folder = repository / name / str(version)
    part = repository / name / f".{version}.part"
    part.mkdir(parents=True, exist_ok=True)
    (part / "model.onnx").write_bytes(model)
    if folder.exists():
        (part / "model.onnx").rename(folder / "model.onnx")
        part.rmdir()
    else:
        part.rename(folder)
    if config is not None:
        (repository / name / "config.pbtxt").write_text(config)
    return folder
