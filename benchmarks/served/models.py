"""The two models of ``benchmarks/serving.py``, loaded the same way by every server and by the raw loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnxruntime

Arrays = Mapping[str, Any]
Compute = Callable[[Arrays], np.ndarray[Any, Any]]


def session(threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(os.environ["BENCH_MODEL"], options, providers=["CPUExecutionProvider"])


def perceptron(threads: int = 1) -> Compute:
    """``x`` [n, 16] to ``y`` [n, 2]."""
    run = session(threads).run
    return lambda inputs: run(["y"], {"x": inputs["x"]})[0]


def encoder(threads: int) -> Compute:
    """Token ids to sentence vectors: the transformer, then the mean over the tokens that are text, at length 1."""
    run = session(threads).run

    def compute(inputs: Arrays) -> np.ndarray[Any, Any]:
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        states = run(None, feed)[0]
        weights = mask[:, :, None].astype(np.float32)
        means = (states * weights).sum(axis=1) / weights.sum(axis=1)
        return means / np.linalg.norm(means, axis=1, keepdims=True)

    return compute


MODELS: dict[str, Callable[[int], Compute]] = {"mlp": perceptron, "minilm": encoder}
