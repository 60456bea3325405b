"""Requests that warm a model up, as ``model_warmup`` of its configuration describes them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from relight.base.errors import BadInput, MissingWeights, Problem
from relight.wire import tensors
from relight.wire.modelconfig import ModelConfig, Warmup, WarmupInput
from relight.wire.tensors import ANY, Array

SEED = 0
"""Random data is the same at every start: a warm-up that fails once must fail again."""


def inputs(warmup: Warmup, config: ModelConfig, files: Mapping[str, bytes]) -> dict[str, Array]:
    """The tensors of one warm-up. MissingWeights names a data file that is not there, BadInput one that does not fit.

    A data file holds one row, in the binary form of the protocol; it is repeated ``batch_size`` times.
    """
    arrays = {}
    for name, given in warmup.inputs.items():
        row = _row(warmup.name, name, given, files)
        arrays[name] = np.repeat(row[np.newaxis], warmup.batch_size, axis=0) if config.batched else row
    return arrays


def least(config: ModelConfig) -> dict[str, Array]:
    """The smallest request that a model takes, of zeros: one row, and 1 wherever a size may vary."""
    arrays = {}
    for tensor in config.inputs:
        if not tensor.optional:
            shape = [1 if size == ANY else size for size in tensor.spec(config.batched).shape]
            arrays[tensor.name] = _zeros(tensor.datatype, shape)
    return arrays


def _row(warmup: str, name: str, given: WarmupInput, files: Mapping[str, bytes]) -> Array:
    if given.data == "zero":
        return _zeros(given.datatype, given.dims)
    if given.data == "random":
        return _random(given.datatype, given.dims)
    if given.file not in files:
        raise MissingWeights(f"model_warmup {warmup!r}: there is no file {given.file!r} in the model's folder warmup")
    try:
        return tensors.from_bytes(given.datatype, given.dims, files[given.file], name)
    except BadInput as error:
        path = f"model_warmup {warmup!r}, warmup/{given.file}"
        raise BadInput.of([Problem(path, problem.message) for problem in error.problems]) from None


def _zeros(datatype: str, shape: tuple[int, ...] | list[int]) -> Array:
    if datatype == "BYTES":
        return np.full(shape, b"", dtype=object)
    return np.zeros(shape, tensors.numpy_dtype(datatype))


def _random(datatype: str, shape: tuple[int, ...]) -> Array:
    numbers = np.random.default_rng(SEED)
    if datatype == "BYTES":
        array = np.empty(shape, dtype=object)
        array.ravel()[:] = [b"%d" % number for number in numbers.integers(0, 1000, array.size)]
        return array
    dtype = tensors.numpy_dtype(datatype)
    if dtype.kind == "f":
        return numbers.random(shape).astype(dtype)
    # Small numbers: as ids of tokens or classes, large ones would be out of a model's range.
    return numbers.integers(0, 2, shape).astype(dtype)
