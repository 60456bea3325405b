"""A perceptron of two layers: what is left when the model costs nothing."""

from __future__ import annotations

from served import models

from relight import sdk


class Perceptron(sdk.Model):
    inputs = (sdk.TensorSpec("x", "FP32", (-1, 16)),)
    outputs = (sdk.TensorSpec("y", "FP32", (-1, 2)),)
    max_batch_size = 64
    batching = sdk.BatchingSettings(64)

    def load(self) -> None:
        self._compute = models.perceptron(1)

    def infer(self, inputs: dict[str, sdk.Array]) -> dict[str, sdk.Array]:
        return {"y": self._compute(inputs)}


def new() -> Perceptron:
    return Perceptron()
