"""Gives back the first number of each row and the sum of the row; raises at a row that holds a certain number."""

from __future__ import annotations

import numpy as np

from relight import sdk

POISON = -1.0


class Mixed(sdk.Model):
    inputs = (sdk.TensorSpec("x", "FP32", (-1, 8)),)
    outputs = (sdk.TensorSpec("y", "FP32", (-1, 2)),)
    max_batch_size = 32
    batching = sdk.BatchingSettings(32)

    def infer(self, inputs: dict[str, sdk.Array]) -> dict[str, sdk.Array]:
        x = inputs["x"]
        if (x[:, 1] == POISON).any():
            raise ValueError("a row that this model cannot bear")
        return {"y": np.stack([x[:, 0], x.sum(axis=1)], axis=1)}


def new() -> Mixed:
    return Mixed()
