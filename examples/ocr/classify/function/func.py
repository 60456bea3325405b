"""Turns lines that stand on their heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from relight import sdk

from .images import decode, encode, scaled

HEIGHT, WIDTH = 48, 192
SURE = 0.9
"""A line is turned where the network is so sure that it stands on its head."""


class Classify(sdk.OnnxModel):
    """``dev.relight.lines.v1`` to ``dev.relight.uprightlines.v1``.

    A page most of whose lines are turned was itself upside down: then its lines are in the other order too.
    """

    reply_type = "dev.relight.uprightlines.v1"

    def event_inputs(self, event: sdk.Event) -> dict[str, sdk.Array]:
        # A page without lines still goes its way: one empty row is looked at for nothing.
        rows = [_row(pixels) for pixels in _lines(event)] or [np.zeros((3, HEIGHT, WIDTH), np.float32)]
        return {self.inputs[0].name: np.stack(rows)}

    def event_reply(self, event: sdk.Event, outputs: dict[str, sdk.Array]) -> dict[str, Any]:
        data = event.json()
        (likely,) = outputs.values()
        lines, turned = [], 0
        for line, pixels, (_, over) in zip(data["lines"], _lines(event), likely.tolist(), strict=False):
            if over > SURE:
                turned += 1
                pixels = np.ascontiguousarray(pixels[::-1, ::-1])
            lines.append({**line, "image": encode(pixels)})
        if 2 * turned > len(lines):
            lines.reverse()
        return {**data, "lines": lines, "turned": turned}


def _lines(event: sdk.Event) -> list[sdk.Array]:
    data = event.json()
    if not isinstance(data, dict) or not isinstance(data.get("lines"), list):
        raise sdk.BadInput("an object with lines was expected", param="data")
    return [decode(line.get("image"), f"lines[{at}].image") for at, line in enumerate(data["lines"])]


def _row(pixels: sdk.Array) -> sdk.Array:
    """The beginning of a line as far as the network looks, the rest empty."""
    width = min(WIDTH, max(1, round(pixels.shape[1] * HEIGHT / pixels.shape[0])))
    row = np.zeros((3, HEIGHT, WIDTH), np.float32)
    row[:, :, :width] = scaled(pixels, width, HEIGHT)
    return row


def new() -> Classify:
    return Classify()
