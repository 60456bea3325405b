"""How far two models give the same answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from relight.wire.tensors import Array

Outputs = dict[str, Array]


@dataclass(frozen=True)
class Agreement:
    """Of one output, over all samples.

    ``cosine`` is that of the row that agrees least, for one wrong answer is a wrong answer. For numbers that are no
    quantities (labels, text) it is the share that is equal. ``top1``: the share of rows along the last dimension whose
    largest value is in the same place; None where there is nothing to choose from.
    """

    output: str
    rows: int
    max_abs: float
    cosine: float
    top1: float | None


def compare(pairs: Iterable[tuple[Outputs, Outputs]]) -> list[Agreement]:
    """The agreement per output, of pairs (answer before, answer after) to the same inputs."""
    before: dict[str, list[Array]] = {}
    after: dict[str, list[Array]] = {}
    for old, new in pairs:
        for name, array in old.items():
            before.setdefault(name, []).append(array)
            if name in new:
                after.setdefault(name, []).append(new[name])
    return [_agreement(name, arrays, after.get(name, [])) for name, arrays in before.items()]


def _agreement(name: str, before: list[Array], after: list[Array]) -> Agreement:
    rows = sum(len(array) if array.ndim else 1 for array in before)
    if [array.shape for array in before] != [array.shape for array in after]:
        return Agreement(name, rows, float("inf"), 0.0, None)
    pairs = list(zip(before, after, strict=True))
    if before[0].dtype.kind != "f":
        equal = sum(int((old == new).sum()) for old, new in pairs) / max(1, sum(old.size for old in before))
        distance = 0.0 if equal == 1 or before[0].dtype.kind not in "iu" else max(_distance(*pair) for pair in pairs)
        return Agreement(name, rows, distance, equal, equal)
    return Agreement(
        name, rows, max(_distance(*pair) for pair in pairs), min(_cosine(*pair) for pair in pairs), _top1(pairs)
    )


def _distance(old: Array, new: Array) -> float:
    if old.size == 0:
        return 0.0
    distance = np.abs(old.astype(np.float64) - new.astype(np.float64))
    # Where both are not a number, or the same infinity, they agree.
    distance[(np.isnan(old) & np.isnan(new)) | (old == new)] = 0.0
    return float(np.nan_to_num(distance.max(), nan=np.inf))


def _cosine(old: Array, new: Array) -> float:
    """The least cosine of all rows. What is not a number is one in both, or the row is wrong."""
    a = np.atleast_1d(old).reshape(len(old) if old.ndim > 1 else 1, -1).astype(np.float64)
    b = np.atleast_1d(new).reshape(a.shape).astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return 0.0
    a, b = np.where(finite, a, 0.0), np.where(finite, b, 0.0)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    dots = (a * b).sum(axis=1)
    both_zero = ~a.any(axis=1) & ~b.any(axis=1)
    cosines = np.where(both_zero, 1.0, np.divide(dots, lengths, out=np.zeros_like(dots), where=lengths > 0))
    return float(cosines.min(initial=1.0))


def _top1(pairs: list[tuple[Array, Array]]) -> float | None:
    if any(old.ndim < 2 or old.shape[-1] < 2 or old.size == 0 for old, _ in pairs):
        return None
    equal = [(old.argmax(-1) == new.argmax(-1)).ravel() for old, new in pairs]
    return float(np.concatenate(equal).mean())
