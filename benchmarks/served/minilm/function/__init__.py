"""A small sentence encoder, from token ids."""

from __future__ import annotations

import os

from served import models

from relight import sdk


class MiniLM(sdk.Model):
    inputs = (sdk.TensorSpec("input_ids", "INT64", (-1, 128)), sdk.TensorSpec("attention_mask", "INT64", (-1, 128)))
    outputs = (sdk.TensorSpec("embedding", "FP32", (-1, 384)),)
    max_batch_size = 8
    instances = int(os.environ["BENCH_INSTANCES"])
    batching = sdk.BatchingSettings(8)

    def load(self) -> None:
        self._compute = models.encoder(int(os.environ["BENCH_THREADS"]))

    def infer(self, inputs: dict[str, sdk.Array]) -> dict[str, sdk.Array]:
        return {"embedding": self._compute(inputs)}


def new() -> MiniLM:
    return MiniLM()
