"""TensorRT engines built from ONNX files. Could not be run where relight is tested: see docs/limits.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from relight.backends import gpus
from relight.backends.optimizing.samples import Sample
from relight.backends.tensorrt import libraries
from relight.base.errors import PlatformError, Unprocessable
from relight.wire.tensors import ANY

PLAN = "model.plan"
MAX_ROWS = 64
"""Rows that a plan takes at once, where the model's first dimension is free."""


def build(source: Path, target: Path, samples: Sequence[Sample]) -> None:
    """An engine for this machine's GPU, in the precision that the ONNX file has.

    Where a dimension is free the profile reaches from its smallest to its largest size among the samples, and from 1
    row to ``MAX_ROWS``; requests outside of it are refused by the plan.
    """
    tensorrt, _ = libraries()
    if gpus.visible() == 0:
        raise PlatformError("a TensorRT plan is built on the kind of GPU that runs it, and none is visible here")
    logger = tensorrt.Logger(tensorrt.Logger.WARNING)
    builder = tensorrt.Builder(logger)
    network = builder.create_network(0)
    parser = tensorrt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(source)):
        reasons = "; ".join(str(parser.get_error(at)) for at in range(parser.num_errors))
        raise Unprocessable(f"TensorRT {tensorrt.__version__} cannot read {source.name}: {reasons[:500]}")
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    for at in range(network.num_inputs):
        tensor = network.get_input(at)
        if ANY in tuple(tensor.shape):
            profile.set_shape(
                tensor.name, *shapes(tuple(tensor.shape), [sample[tensor.name].shape for sample in samples])
            )
    config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise Unprocessable(
            f"TensorRT {tensorrt.__version__} could not build an engine of {source.name}; see its lines"
        )
    (target / PLAN).write_bytes(bytes(engine))


def shapes(wanted: Sequence[int], seen: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """The smallest, the usual and the largest shape of an input, for a profile."""
    sizes = np.array(seen)
    least, usual, most = sizes.min(axis=0), np.sort(sizes, axis=0)[len(sizes) // 2], sizes.max(axis=0)
    if wanted[0] == ANY:
        least[0], most[0] = 1, max(MAX_ROWS, most[0])
    free = np.array(wanted) == ANY
    rows = (np.where(free, size, wanted) for size in (least, usual, most))
    return tuple(tuple(int(size) for size in row) for row in rows)
