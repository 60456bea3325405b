"""Real inputs to try a model on: from a file of arrays, from JSON, or from texts for a model with a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from relight.base.errors import BadInput, MissingWeights, NotFound, PlatformError, Problem
from relight.wire.tensors import ANY, Array, TensorSpec, numpy_dtype

Sample = dict[str, Array]
"""One request: an array per input, by name."""

LIMIT = 500
"""Samples that are used: more tell nothing new, and take their time."""
MAX_TOKENS = 256
TOKENIZER = "tokenizer.json"
_TOKENS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}


def from_file(path: Path, inputs: Sequence[TensorSpec] | None) -> list[Sample]:
    """The samples of a file. BadInput names each input that is missing, unknown, or of a shape that does not fit.

    ``.npz``: an array per input; where the first dimension is free, each row is a sample. ``.json``: an object of
    nested lists by input, a V2 request (``{"inputs": [{"name", "shape", "data"}]}``), or a list of either. ``inputs``
    None: the model does not say what it takes; rows are samples, and nothing is checked.
    """
    if not path.is_file():
        raise NotFound(f"{path}: no such file")
    if path.suffix == ".npz":
        samples = _rows(_arrays(path), inputs)
    elif path.suffix == ".json":
        samples = [_from_json(item, inputs or (), path) for item in _items(path)]
    else:
        raise BadInput(f"{path}: expected a file of inputs ending in .npz or .json")
    if not samples:
        raise BadInput(f"{path} holds no input")
    if inputs is None:
        return [{name: _single(array) for name, array in sample.items()} for sample in samples[:LIMIT]]
    return [_fitting(sample, inputs, path) for sample in samples[:LIMIT]]


def from_texts(path: Path, tokenizer: Path, inputs: Sequence[TensorSpec]) -> list[Sample]:
    """A sample per line of a text file, as token ids; for models whose inputs are named as encoders' are."""
    if not path.is_file():
        raise NotFound(f"{path}: no such file")
    if not tokenizer.is_file():
        raise MissingWeights(f"texts need a {TOKENIZER} beside the model, and it has none: give its inputs as arrays")
    unknown = [spec.name for spec in inputs if spec.name not in _TOKENS]
    if unknown:
        raise BadInput(f"texts become {', '.join(_TOKENS)}; the model wants {', '.join(unknown)}: give arrays instead")
    try:
        made = import_module("tokenizers").Tokenizer.from_file(str(tokenizer))
    except ModuleNotFoundError:
        raise PlatformError("tokenizers is not installed here; install relight[onnx]") from None
    made.no_padding()
    made.enable_truncation(MAX_TOKENS)
    lines = [line for line in path.read_text().splitlines() if line.strip()][:LIMIT]
    if not lines:
        raise BadInput(f"{path} holds no text: expected one per line")
    return [
        {spec.name: np.array([getattr(encoding, _TOKENS[spec.name])], numpy_dtype(spec.datatype)) for spec in inputs}
        for encoding in made.encode_batch(lines)
    ]


def widened(sample: Sample, inputs: Sequence[TensorSpec], rows: int) -> Sample | None:
    """The sample's first row so many times; None for a model that takes no batches."""
    if not all(spec.shape and spec.shape[0] == ANY for spec in inputs):
        return None
    return {name: np.repeat(array[:1], rows, axis=0) for name, array in sample.items()}


def _arrays(path: Path) -> Mapping[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as loaded:
            return {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, EOFError) as error:
        raise BadInput(f"{path} is no file of numpy arrays: {error}") from None


def _single(array: Array) -> Array:
    """Numbers of JSON are of double precision; models' are not."""
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _rows(arrays: Mapping[str, Array], inputs: Sequence[TensorSpec] | None) -> list[Sample]:
    free = inputs is None or all(spec.shape and spec.shape[0] == ANY for spec in inputs)
    if not free or not arrays or any(array.ndim == 0 for array in arrays.values()):
        return [dict(arrays)]
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) != 1:
        listed = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise BadInput(f"all inputs need the same number of rows; {listed}")
    return [{name: array[at : at + 1] for name, array in arrays.items()} for at in range(next(iter(counts.values())))]


def _items(path: Path) -> list[Any]:
    try:
        value = json.loads(path.read_text())
    except ValueError as error:
        raise BadInput(f"{path} is no JSON: {error}") from None
    return value if isinstance(value, list) else [value]


def _from_json(item: Any, inputs: Sequence[TensorSpec], path: Path) -> Sample:
    if not isinstance(item, dict):
        raise BadInput(f"{path}: expected an object with a list of numbers per input, got {type(item).__name__}")
    kinds = {spec.name: numpy_dtype(spec.datatype) for spec in inputs}
    if isinstance(item.get("inputs"), list):
        named = {
            str(tensor.get("name")): (tensor.get("data"), tensor.get("shape"))
            for tensor in item["inputs"]
            if isinstance(tensor, dict)
        }
    else:
        named = {str(name): (data, None) for name, data in item.items()}
    sample, problems = {}, []
    for name, (data, shape) in named.items():
        try:
            array = np.array(data, dtype=kinds.get(name))
            sample[name] = array if shape is None else array.reshape(shape)
        except (ValueError, TypeError, OverflowError) as error:
            problems.append(Problem(name, str(error)))
    if problems:
        raise BadInput.of(problems)
    return sample


def _fitting(sample: Sample, inputs: Sequence[TensorSpec], path: Path) -> Sample:
    problems = [
        Problem(name, f"the model has no such input; it has {', '.join(spec.name for spec in inputs)}")
        for name in sample
        if name not in {spec.name for spec in inputs}
    ]
    fitted = {}
    for spec in inputs:
        array = sample.get(spec.name)
        if array is None:
            problems.append(Problem(spec.name, f"is not in {path}"))
        elif not spec.accepts(array.shape):
            problems.append(Problem(spec.name, f"expected shape {list(spec.shape)}, got {list(array.shape)}"))
        elif not np.can_cast(array.dtype, numpy_dtype(spec.datatype), "same_kind"):
            problems.append(Problem(spec.name, f"expected {spec.datatype}, got numbers of type {array.dtype}"))
        else:
            fitted[spec.name] = np.ascontiguousarray(array, numpy_dtype(spec.datatype))
    if problems:
        raise BadInput.of(problems)
    return fitted
