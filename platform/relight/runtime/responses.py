"""Answers of a model that are kept, for ``response_cache { enable: true }``: an equal request is answered from here.

Only for models whose answer depends on nothing but the request; who enables it says so.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections import OrderedDict

import numpy as np

from relight.runtime.tickets import UNMERGED, Job
from relight.wire import tensors
from relight.wire.tensors import Array

LIMIT = 16 * 2**20
"""Bytes of outputs that one model keeps; the least recently used go first."""

_LENGTH = struct.Struct("<Q")


class Responses:
    """Outputs by the content of their request, for all threads."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._kept: OrderedDict[bytes, tuple[dict[str, Array], int]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    def get(self, key: bytes) -> dict[str, Array] | None:
        """The outputs that were kept; None where there are none."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                self.misses += 1
                return None
            self.hits += 1
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: bytes, outputs: dict[str, Array]) -> None:
        """Keep a copy: outputs may be views of a larger batch."""
        size = sum(_size(array) for array in outputs.values())
        if size > self._limit:
            return
        copies = {name: np.array(array) for name, array in outputs.items()}
        for array in copies.values():
            array.flags.writeable = False
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = copies, size
            self._size += size
            while self._size > self._limit:
                _, (_, gone) = self._kept.popitem(last=False)
                self._size -= gone


def key_of(job: Job) -> bytes:
    """A digest of all that decides an answer: names, types, shapes, values, and parameters but those of the wait."""
    whole = hashlib.blake2b(digest_size=32)

    def add(data: bytes) -> None:
        whole.update(_LENGTH.pack(len(data)))
        whole.update(data)

    for name in sorted(job.inputs):
        array = job.inputs[name]
        add(f"{name}\0{array.dtype}\0{array.shape}".encode())
        add(tensors.to_bytes(array, "BYTES" if array.dtype.kind == "O" else None))
    add(repr(sorted((name, value) for name, value in job.parameters.items() if name not in UNMERGED)).encode())
    return whole.digest()


def _size(array: Array) -> int:
    if array.dtype.kind == "O":
        return sum(len(tensors.element_bytes(item)) for item in array.ravel().tolist())
    return array.nbytes
