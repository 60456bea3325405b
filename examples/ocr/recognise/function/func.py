"""Reads lines of text."""

from __future__ import annotations

from typing import Any

import numpy as np

from relight import sdk

from .images import decode, scaled

HEIGHT = 48
GAP = 32
"""Columns that a batch's width is a multiple of, so that its shapes are few."""
WIDEST = 100 * HEIGHT
"""Columns of a line at most; what is longer for its height is squeezed."""


class Recognise(sdk.OnnxModel):
    """``dev.relight.uprightlines.v1`` to ``dev.relight.text.v1``: each line's text, and the page's."""

    reply_type = "dev.relight.text.v1"

    def load(self) -> None:
        super().load()
        files = self.context.files
        if files is None or not (files / "labels.txt").is_file():
            raise sdk.NotFound(f"model {self.context.model!r} has no labels.txt, a character to a line")
        # The network's first class is "nothing", and its last one the space.
        self._labels = ["", *(files / "labels.txt").read_text("utf-8").split("\n"), " "]

    def event_inputs(self, event: sdk.Event) -> dict[str, sdk.Array]:
        lines = _lines(event)
        widths = [min(WIDEST, max(1, round(pixels.shape[1] * HEIGHT / pixels.shape[0]))) for pixels in lines]
        rows = np.zeros((max(1, len(lines)), 3, HEIGHT, -(-max(widths, default=GAP) // GAP) * GAP), np.float32)
        for row, pixels, width in zip(rows, lines, widths, strict=False):
            row[:, :, :width] = scaled(pixels, width, HEIGHT)
        return {self.inputs[0].name: rows}

    def event_reply(self, event: sdk.Event, outputs: dict[str, sdk.Array]) -> dict[str, Any]:
        data = event.json()
        (likely,) = outputs.values()
        lines = []
        for line, steps in zip(data["lines"], likely, strict=False):
            text, score = self._read(steps)
            lines.append({"box": line["box"], "text": text, "score": score})
        return {"page": data["page"], "text": "\n".join(line["text"] for line in lines), "lines": lines}

    def _read(self, steps: sdk.Array) -> tuple[str, float]:
        """The best class of each step; repeated ones are one, and "nothing" stands between (CTC, greedily)."""
        best = steps.argmax(axis=1)
        kept = (best != 0) & np.concatenate(([True], best[1:] != best[:-1]))
        if not kept.any():
            return "", 0.0
        return "".join(self._labels[at] for at in best[kept]), round(float(steps.max(axis=1)[kept].mean()), 4)


def _lines(event: sdk.Event) -> list[sdk.Array]:
    data = event.json()
    if not isinstance(data, dict) or not isinstance(data.get("lines"), list):
        raise sdk.BadInput("an object with lines was expected", param="data")
    return [decode(line.get("image"), f"lines[{at}].image") for at, line in enumerate(data["lines"])]


def new() -> Recognise:
    return Recognise()
