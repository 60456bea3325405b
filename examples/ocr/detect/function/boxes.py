"""From the network's map (how likely each pixel is text) to the boxes of lines.

The rules of the Differentiable Binarization post-processing that the network was published with (Liao et al., 2020;
thresholds of RapidOCR), for lines that run along the page's edges: boxes are upright, never turned.
"""

from __future__ import annotations

import numpy as np

from relight import sdk

Box = tuple[int, int, int, int]
"""Left, top, right, bottom, in pixels; right and bottom are the first that are outside."""

TEXT = 0.3
"""A pixel at least so likely is text."""
SURE = 0.5
"""A box whose pixels are less likely on average is none."""
GROW = 1.6
"""The network draws lines slimmer than they are: the share of area to circumference that is added all around."""
LEAST = 3
"""Pixels of a box's shorter side at least."""


def find(likely: sdk.Array, width: int, height: int) -> list[Box]:
    """The boxes on a page of a size, in the order of reading."""
    across, down = width / likely.shape[1], height / likely.shape[0]
    boxes = []
    for left, top, right, bottom in _components(_thickened(likely > TEXT)):
        wide, high = right - left, bottom - top
        if min(wide, high) < LEAST or float(likely[top:bottom, left:right].mean()) < SURE:
            continue
        more = wide * high * GROW / (2 * (wide + high))
        boxes.append(
            (
                max(0, round((left - more) * across)),
                max(0, round((top - more) * down)),
                min(width, round((right + more) * across)),
                min(height, round((bottom + more) * down)),
            )
        )
    return _as_read(boxes)


def _thickened(mask: sdk.Array) -> sdk.Array:
    """Each pixel takes the one to its right, below, and between along."""
    found = mask.copy()
    found[1:] |= mask[:-1]
    found[:, 1:] |= mask[:, :-1]
    found[1:, 1:] |= mask[:-1, :-1]
    return found


def _components(mask: sdk.Array) -> list[Box]:
    """The boxes of connected pixels (by side or corner): runs of each row are joined to those that they touch above."""
    parents: list[int] = []
    boxes: list[list[int]] = []

    def root(at: int) -> int:
        while parents[at] != at:
            parents[at] = parents[parents[at]]
            at = parents[at]
        return at

    above: list[tuple[int, int, int]] = []
    for y, row in enumerate(mask):
        edges = np.flatnonzero(np.diff(np.concatenate(([0], row.astype(np.int8), [0]))))
        here = []
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            number = len(parents)
            parents.append(number)
            boxes.append([start, y, end, y + 1])
            for first, last, other in above:
                if first <= end and start <= last:
                    parents[root(other)] = root(number)
            here.append((start, end, number))
        above = here
    merged: dict[int, list[int]] = {}
    for number, box in enumerate(boxes):
        whole = merged.setdefault(root(number), list(box))
        whole[:] = [*map(min, whole[:2], box[:2]), *map(max, whole[2:], box[2:])]
    return [(left, top, right, bottom) for left, top, right, bottom in merged.values()]


def _as_read(boxes: list[Box]) -> list[Box]:
    """From top to bottom; what stands beside each other from left to right."""
    ordered = sorted(boxes, key=lambda box: (box[1] + box[3]) / 2)
    rows: list[list[Box]] = []
    for box in ordered:
        middle = (box[1] + box[3]) / 2
        if rows and rows[-1][0][1] <= middle < rows[-1][0][3]:
            rows[-1].append(box)
        else:
            rows.append([box])
    return [box for row in rows for box in sorted(row)]
