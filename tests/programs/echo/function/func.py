"""A model that returns what it gets."""

from __future__ import annotations

from relight.sdk import Array, Model, TensorSpec


class Echo(Model):
    inputs = (TensorSpec("x", "FP32", (-1, 2)), TensorSpec("text", "BYTES", (-1,)))
    outputs = (TensorSpec("y", "FP32", (-1, 2)), TensorSpec("said", "BYTES", (-1,)))
    max_batch_size = 8

    def infer(self, inputs: dict[str, Array]) -> dict[str, Array]:
        return {"y": inputs["x"], "said": inputs["text"]}


def new() -> Echo:
    return Echo()
