"""Turns pages that stand on their heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from relight import sdk

from .images import decode, encode, scaled

HEIGHT, WIDTH = 48, 192
SURE = 0.9
"""A line counts as standing on its head where the network is so sure of it."""


class Classify(sdk.OnnxModel):
    """``dev.relight.lines.v1`` to ``dev.relight.uprightlines.v1``.

    The page decides as a whole, by most of its lines: the network is wrong about a line now and then.
    """

    reply_type = "dev.relight.uprightlines.v1"

    def event_inputs(self, event: sdk.Event) -> dict[str, sdk.Array]:
        # A page without lines still goes its way: one empty row is looked at for nothing.
        rows = [_row(pixels) for pixels in _lines(event)] or [np.zeros((3, HEIGHT, WIDTH), np.float32)]
        return {self.inputs[0].name: np.stack(rows)}

    def event_reply(self, event: sdk.Event, outputs: dict[str, sdk.Array]) -> dict[str, Any]:
        data = event.json()
        (likely,) = outputs.values()
        over = [sure > SURE for _, sure in likely.tolist()][: len(data["lines"])]
        upside_down = 2 * sum(over) > len(over)
        lines = [
            {**line, "image": encode(np.ascontiguousarray(pixels[::-1, ::-1]))}
            for line, pixels in zip(reversed(data["lines"]), reversed(_lines(event)), strict=True)
        ]
        return {**data, "lines": lines if upside_down else data["lines"], "turned": upside_down}


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
