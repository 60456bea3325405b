"""Finds the lines of text on a page."""

from __future__ import annotations

from typing import Any

import numpy as np

from relight import sdk

from .boxes import find
from .images import decode, encode, scaled

SIDE = 736
"""Pixels that the shorter side of a page has at least when the network sees it."""
GRID = 32
"""Both sides are multiples of this."""


class Detect(sdk.OnnxModel):
    """``dev.relight.page.v1`` to ``dev.relight.lines.v1``: where the lines are, from top to bottom, each cut out."""

    reply_type = "dev.relight.lines.v1"

    def event_inputs(self, event: sdk.Event) -> dict[str, sdk.Array]:
        page = _page(event)
        height, width = page.shape[:2]
        ratio = max(1.0, SIDE / min(height, width))
        sides = [max(GRID, round(side * ratio / GRID) * GRID) for side in (width, height)]
        return {self.inputs[0].name: scaled(page, *sides)[np.newaxis]}

    def event_reply(self, event: sdk.Event, outputs: dict[str, sdk.Array]) -> dict[str, Any]:
        page = _page(event)
        (likely,) = outputs.values()
        found = find(likely[0, 0], page.shape[1], page.shape[0])
        lines = [
            {"box": [x0, y0, x1, y1], "image": encode(np.ascontiguousarray(page[y0:y1, x0:x1]))}
            for x0, y0, x1, y1 in found
        ]
        return {"page": _data(event)["page"], "width": page.shape[1], "height": page.shape[0], "lines": lines}


def _data(event: sdk.Event) -> dict[str, Any]:
    data = event.json()
    if not isinstance(data, dict) or not isinstance(data.get("page"), str):
        raise sdk.BadInput("an object with page (text) and image was expected", param="data")
    return data


def _page(event: sdk.Event) -> sdk.Array:
    return decode(_data(event).get("image"), "image")


def new() -> Detect:
    return Detect()
