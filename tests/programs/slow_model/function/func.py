"""A model that takes the time that it is told."""

from __future__ import annotations

import logging
import time

import numpy as np

from relight.sdk import Array, Model, TensorSpec

log = logging.getLogger("slow")


class Slow(Model):
    inputs = (TensorSpec("seconds", "FP32", (-1,)),)
    outputs = (TensorSpec("slept", "FP32", (-1,)),)

    def infer(self, inputs: dict[str, Array]) -> dict[str, Array]:
        log.info("model.began")
        time.sleep(float(np.max(inputs["seconds"])))
        return {"slept": inputs["seconds"]}


def new() -> Slow:
    return Slow()
