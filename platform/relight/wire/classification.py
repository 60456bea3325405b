"""Triton's classification extension: the largest values of an output, each as text ``value:index``.

A requested output with the parameter ``classification: k`` comes as BYTES of shape ``[rows, k]``, or ``[k]`` where the
model has no batch: its k largest values in falling order, the index counted through all dimensions of the row. Values
are written with six decimals, as Triton does. Not-a-numbers come last.
"""

from __future__ import annotations

import numpy as np

from relight.wire.tensors import Array


def classify(array: Array, classes: int, batched: bool) -> Array:
    """The ``classes`` largest of each row; fewer where a row has fewer."""
    if not array.size:
        return np.empty((len(array), 0) if batched else (0,), dtype=object)
    rows = array.reshape(len(array) if batched else 1, -1)
    if rows.dtype.kind == "b":
        rows = rows.view(np.uint8)
    # Inverted, integers fall as they rose, and none overflows.
    falling = -rows if rows.dtype.kind == "f" else ~rows
    # Stable: of equal values the first one wins, whatever the size of the row.
    order = np.argsort(falling, axis=1, kind="stable")[:, :classes]
    found = np.empty(order.shape, dtype=object)
    for at, index in np.ndenumerate(order):
        found[at] = b"%f:%d" % (rows[at[0], index], index)
    return found if batched else found[0]
