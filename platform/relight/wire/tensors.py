"""Tensors as the Open Inference Protocol writes them: datatypes, JSON data, little-endian bytes; to and from numpy.

Whatever a request promises is compared with what it holds before anything is allocated for it: a shape of
``[2**32, 2**32]`` with one number is an answer, not an allocation. BF16 has no numpy type; it is read into float32 and
written back by rounding to nearest, and travels in the binary form only, like FP16.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from relight.base.errors import BadInput, Problem

Array = NDArray[Any]

ANY = -1
"""A dimension of a specification that takes any size."""

_NUMPY: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype("<f4"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BYTES": np.dtype(object),
}
DATATYPES: tuple[str, ...] = tuple(_NUMPY)
BINARY_ONLY = frozenset({"FP16", "BF16"})
"""Datatypes that have no JSON form: a JSON number says nothing about which 16-bit value was meant."""

_COUNTED_FROM = 64 * 2**10
"""Bytes of JSON from which elements are counted by their commas before they are made: each becomes an object of 32
bytes, so a body of the largest size could take gigabytes for a tensor whose shape promises one number."""

_V2 = {dtype: name for name, dtype in _NUMPY.items() if name != "BF16"}
_SIZES = {name: dtype.itemsize for name, dtype in _NUMPY.items()} | {"BF16": 2}
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a model says of one input or output. ``shape`` is the whole shape, the batch included; -1 takes any size."""

    name: str
    datatype: str
    shape: Sequence[int]
    optional: bool = False
    """Of an input: whether a request may leave it out."""

    def __post_init__(self) -> None:
        if self.datatype not in _NUMPY:
            raise ValueError(f"tensor {self.name!r}: {self.datatype!r} is not a datatype; expected {expected()}")
        object.__setattr__(self, "shape", tuple(self.shape))

    def accepts(self, shape: Sequence[int]) -> bool:
        """Whether an array of that shape fits."""
        return len(shape) == len(self.shape) and all(
            want in (ANY, have) for want, have in zip(self.shape, shape, strict=True)
        )


def expected() -> str:
    """The datatypes, for sentences."""
    return ", ".join(DATATYPES)


def numpy_dtype(datatype: str) -> np.dtype[Any]:
    """The numpy type that holds a datatype; BF16 is held as float32."""
    return _NUMPY[datatype]


def size_of(datatype: str) -> int | None:
    """Bytes per element on the wire; None for BYTES, whose elements have a length each."""
    return None if datatype == "BYTES" else _SIZES[datatype]


def is_plain(datatype: str) -> bool:
    """Whether the bytes of the binary form are the numpy values as they are."""
    return datatype not in {"BYTES", "BF16", "BOOL"}


def datatype_of(dtype: np.dtype[Any]) -> str:
    """The datatype of a numpy type. Text, objects and what the protocol has no number for (dates) are BYTES."""
    if dtype.kind in "OUSMmV":
        return "BYTES"
    name = _V2.get(dtype.newbyteorder("<") if dtype.byteorder == ">" else dtype)
    if name is None:
        raise ValueError(f"numpy type {dtype} has no datatype in the Open Inference Protocol; expected {expected()}")
    return name


def count(shape: Sequence[int]) -> int:
    """How many elements a shape promises; exact, however large."""
    return math.prod(shape)


@lru_cache(maxsize=128)
def _decoder(element: type, depth: int) -> msgspec.json.Decoder[Any]:
    kind: Any = element
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


def _depth(raw: memoryview | bytes) -> int:
    """How many brackets the JSON opens before its first element."""
    depth = 0
    for byte in bytes(raw[:256]):
        if byte == 0x5B:
            depth += 1
        elif byte not in b" \t\r\n":
            break
    return depth


def from_json(datatype: str, shape: Sequence[int], raw: bytes | memoryview, path: str) -> Array:
    """An array from the JSON text of a tensor's ``data``: flat, or nested as the shape is.

    Strict: a null, a number as text, a fraction in an integer tensor or a value that does not fit is refused, and so is
    a nesting that is neither flat nor that of the shape.
    """
    if datatype in BINARY_ONLY:
        raise _bad(f"{path}.data", f"{datatype} needs the binary form (parameters.binary_data_size)")
    _not_far_too_many(datatype, shape, raw, path)
    depth = _depth(raw)
    if depth == 0 or depth not in {1, len(shape)}:
        raise _bad(f"{path}.data", f"expected a flat array or one nested as shape {list(shape)}")
    kind = _NUMPY[datatype].kind
    element = {"b": bool, "f": float, "O": str}.get(kind, int)
    try:
        data = _decoder(element, depth).decode(raw)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _bad(f"{path}.data", _reworded(str(error), datatype)) from None
    if depth == 1:
        _same_count(len(data), shape, path)
    else:
        _same_nesting(data, shape, path)
    if kind == "O":
        array = np.empty(count(shape), dtype=object)
        array[:] = [text.encode() for text in _leaves(data, depth)]
    elif kind in "iu":
        array = _integers(data, datatype, path)
    else:
        with np.errstate(over="ignore"):
            array = np.array(data, dtype=_NUMPY[datatype])
        if kind == "f" and not np.isfinite(array).all():
            raise _bad(f"{path}.data", f"a value does not fit {datatype}")
    return _shaped(array, shape, path)


def _not_far_too_many(datatype: str, shape: Sequence[int], raw: bytes | memoryview, path: str) -> None:
    if datatype == "BYTES" or len(raw) < _COUNTED_FROM:
        return
    found = bytes(raw).count(b",") + 1
    if found > max(1, count(shape)):
        raise _bad(f"{path}.data", f"shape {list(shape)} promises {count(shape)} elements, {found} are there")


def _integers(data: list[Any], datatype: str, path: str) -> Array:
    wide = np.uint64 if datatype == "UINT64" else np.int64
    info = np.iinfo(_NUMPY[datatype])
    try:
        array: Array = np.array(data, dtype=object) if datatype == "UINT64" else np.array(data, dtype=wide)
    except OverflowError:
        raise _bad(f"{path}.data", f"a value does not fit {datatype}") from None
    if array.size:
        for value in (array.min(), array.max()):
            if not info.min <= value <= info.max:
                raise _bad(f"{path}.data", f"{value} does not fit {datatype}")
    return array.astype(_NUMPY[datatype])


def _leaves(data: list[Any], depth: int) -> list[Any]:
    for _ in range(depth - 1):
        data = [item for row in data for item in row]
    return data


def _same_count(have: int, shape: Sequence[int], path: str) -> None:
    if have != count(shape):
        raise _bad(f"{path}.data", f"shape {list(shape)} promises {count(shape)} elements, {have} are there")


def _same_nesting(data: list[Any], shape: Sequence[int], path: str) -> None:
    rows: list[Any] = [data]
    for axis, size in enumerate(shape):
        for row in rows:
            if len(row) != size:
                raise _bad(
                    f"{path}.data", f"shape {list(shape)} wants {size} in dimension {axis}, {len(row)} are there"
                )
        if axis < len(shape) - 1:
            rows = [item for row in rows for item in row]


def _shaped(array: Array, shape: Sequence[int], path: str) -> Array:
    try:
        return array.reshape(shape)
    except ValueError:
        raise _bad(f"{path}.shape", f"{list(shape)} is not a shape that an array can have") from None


def _reworded(message: str, datatype: str) -> str:
    text, _, where = message.partition(" - at `$")
    return f"{datatype}: {text[:1].lower()}{text[1:]}{f' at {where[:-1]}' if where else ''}".replace("`", "")


def _bad(path: str, message: str) -> BadInput:
    return BadInput.of([Problem(path, message)])


def to_json(array: Array) -> Any:
    """What stands as ``data`` in JSON: flat, in row-major order, for orjson with its numpy option.

    NaN and infinities become null, so that strict parsers read the answer and the count of elements holds; the binary
    form keeps them bit for bit. BYTES that are not UTF-8 have no JSON form: ValueError.
    """
    if array.dtype.kind in "OUSMmV":
        return [element_bytes(element).decode() for element in array.ravel().tolist()]
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat if flat.dtype.isnative else flat.astype(flat.dtype.newbyteorder("="))


def has_json(array: Array, datatype: str) -> bool:
    """Whether an array can be said in JSON: not FP16 or BF16, and not BYTES that are no text."""
    if datatype in BINARY_ONLY:
        return False
    if datatype == "BYTES":
        try:
            to_json(array)
        except UnicodeDecodeError:
            return False
    return True


def element_bytes(element: object) -> bytes:
    """The bytes of one BYTES element; text is UTF-8."""
    return bytes(element) if isinstance(element, bytes | bytearray | memoryview) else str(element).encode()


def from_bytes(datatype: str, shape: Sequence[int], raw: bytes | memoryview, path: str) -> Array:
    """An array from the bytes of the binary form. Numbers are a view of ``raw``: nothing is copied."""
    size = size_of(datatype)
    if size is None:
        array = np.empty(_counted(raw, count(shape), path), dtype=object)
        array[:] = list(_elements(raw))
        return _shaped(array, shape, path)
    if len(raw) != count(shape) * size:
        raise _bad(path, f"shape {list(shape)} of {datatype} is {count(shape) * size} bytes, {len(raw)} are there")
    if datatype == "BF16":
        wide = np.frombuffer(raw, dtype="<u2").astype("<u4") << np.uint32(16)
        return _shaped(wide.view("<f4"), shape, path)
    if datatype == "BOOL":
        return _shaped(np.frombuffer(raw, dtype=np.uint8) != 0, shape, path)
    return _shaped(np.frombuffer(raw, dtype=_NUMPY[datatype]), shape, path)


def _counted(raw: bytes | memoryview, promised: int, path: str) -> int:
    """Walk the length prefixes first: a bad one, or another count than the shape's, is found before allocating."""
    at, found = 0, 0
    while at < len(raw):
        if at + 4 > len(raw):
            raise _bad(path, f"element {found}: {len(raw) - at} bytes left, its length alone takes 4")
        length = _LENGTH.unpack_from(raw, at)[0]
        at += 4 + length
        if at > len(raw):
            raise _bad(path, f"element {found}: {length} bytes promised, {len(raw) - at + length} are there")
        found += 1
    if found != promised:
        raise _bad(path, f"the shape promises {promised} elements, {found} are there")
    return found


def _elements(raw: bytes | memoryview) -> list[bytes]:
    at, elements = 0, []
    while at < len(raw):
        length = _LENGTH.unpack_from(raw, at)[0]
        elements.append(bytes(raw[at + 4 : at + 4 + length]))
        at += 4 + length
    return elements


def to_bytes(array: Array, datatype: str | None = None) -> bytes:
    """The binary form: little-endian numbers, or each element of BYTES behind its length in 4 bytes."""
    datatype = datatype or datatype_of(array.dtype)
    if datatype == "BYTES":
        parts = [element_bytes(element) for element in array.ravel().tolist()]
        return b"".join(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))
    if datatype == "BF16":
        return _rounded_bf16(np.ascontiguousarray(array, dtype="<f4")).tobytes()
    return np.ascontiguousarray(array, dtype=_NUMPY[datatype]).tobytes()


def _rounded_bf16(array: Array) -> Array:
    bits = array.view("<u4")
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    # Rounding could carry a NaN's payload into the exponent and make it an infinity. What came as BF16 is left bit for
    # bit; a NaN whose payload lies in the lower half alone becomes a quiet one.
    cut = bits >> np.uint32(16)
    cut = np.where(cut & np.uint32(0x7F), cut, cut | np.uint32(0x40))
    return np.where(np.isnan(array), cut, rounded).astype("<u2")
