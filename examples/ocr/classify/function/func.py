"""Turns pages that stand on their heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from relight import sdk

from .images import decode, encode, scaled

HEIGHT, WIDTH = 48, 192
PIECES = 16
"""Of a line at most; what is longer for its height is squeezed."""


class Classify(sdk.OnnxModel):
    """``dev.relight.lines.v1`` to ``dev.relight.uprightlines.v1``.

    The page decides as a whole: the network is wrong about a part of a line now and then.
    """

    reply_type = "dev.relight.uprightlines.v1"

    def event_inputs(self, event: sdk.Event) -> dict[str, sdk.Array]:
        # A page without lines still goes its way: one empty row is looked at for nothing.
        parts = [_parts(pixels) for pixels in _lines(event)] or [np.zeros((1, 3, HEIGHT, WIDTH), np.float32)]
        return {self.inputs[0].name: np.concatenate(parts)}

    def event_reply(self, event: sdk.Event, outputs: dict[str, sdk.Array]) -> dict[str, Any]:
        data = event.json()
        (likely,) = outputs.values()
        upside_down = bool(data["lines"]) and float(likely[:, 1].mean()) > 0.5
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


def _parts(pixels: sdk.Array) -> sdk.Array:
    """A line in pieces as wide as the network looks, side by side; the last one ends in nothing.

    It errs most about a long line that is squeezed into one piece.
    """
    width = min(PIECES * WIDTH, max(1, round(pixels.shape[1] * HEIGHT / pixels.shape[0])))
    count = -(-width // WIDTH)
    whole = np.zeros((3, HEIGHT, count * WIDTH), np.float32)
    whole[:, :, :width] = scaled(pixels, width, HEIGHT)
    return np.ascontiguousarray(whole.reshape(3, HEIGHT, count, WIDTH).transpose(2, 0, 1, 3))


def new() -> Classify:
    return Classify()
