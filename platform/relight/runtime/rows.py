"""Rows of several requests in one run, and each request's rows of what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from relight.base.errors import Failed
from relight.runtime.tickets import Seat
from relight.wire.tensors import Array


def shares_of(outputs: Mapping[str, Array], seats: Sequence[Seat]) -> list[dict[str, Array]]:
    """Each one's rows of a run's outputs.

    They are copies: a model may write into the same memory at its next run, and one slow reader must not keep the
    memory of a whole batch.
    """
    if len(seats) == 1 and len(seats[0].ticket.parts) == 1:
        return [{name: np.array(array) for name, array in outputs.items()}]
    rows = sum(seat.rows for seat in seats)
    for name, array in outputs.items():
        if array.ndim == 0 or len(array) != rows:
            raise Failed(f"the model returned {name!r} as {list(array.shape)} for {rows} rows")
    shares, at = [], 0
    for seat in seats:
        shares.append({name: np.array(array[at : at + seat.rows]) for name, array in outputs.items()})
        at += seat.rows
    return shares


def merged(inputs: list[dict[str, Array]], ragged: Mapping[str, float]) -> dict[str, Array]:
    """The rows of several jobs behind one another; where declared, shorter ones padded at their ends."""
    first = inputs[0]
    if len(inputs) == 1:
        return first
    return {
        name: np.concatenate(
            _padded([one[name] for one in inputs], ragged[name]) if name in ragged else [one[name] for one in inputs]
        )
        for name in first
    }


def _padded(arrays: list[Array], value: float) -> list[Array]:
    longest = tuple(map(max, zip(*(array.shape[1:] for array in arrays), strict=True)))
    padded = []
    for array in arrays:
        if array.shape[1:] != longest:
            wide = np.full((len(array), *longest), value, array.dtype)
            wide[tuple(map(slice, array.shape))] = array
            array = wide
        padded.append(array)
    return padded
