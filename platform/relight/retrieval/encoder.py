"""A sentence encoder: a tokenizer and a transformer in ONNX, mean pooling, vectors of length 1."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from tokenizers import Tokenizer

from relight.wire.tensors import Array, TensorSpec

MAX_TOKENS = 256
"""What the model was made for; the rest of a longer text is not seen."""
TOKENS_PER_RUN = 4096
"""Rows times tokens of one run: bounds the attention matrices to a few hundred megabytes."""
PADDING = 1.25
"""How much longer the longest text of a run may be than the shortest: padding is computed like text."""


class Session(Protocol):
    """What runs the transformer: token ids, mask and types in, a state for each token out."""

    @property
    def inputs(self) -> Sequence[TensorSpec]: ...
    @property
    def outputs(self) -> Sequence[TensorSpec]: ...
    def run(self, inputs: dict[str, Array]) -> dict[str, Array]: ...


def read_tokenizer(files: Path) -> Tokenizer:
    """The tokenizer of a model's folder. What its file says of padding and truncation is of its training."""
    tokenizer = Tokenizer.from_file(str(files / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    return tokenizer


class Encoder:
    """Texts to vectors. A text's vector is the same alone and among others."""

    def __init__(self, files: Path, session: Session, tokenizer: Tokenizer) -> None:
        self._model = files / "model.onnx"
        self._session = session
        self._tokenizer = tokenizer

    @property
    def dimension(self) -> int:
        return self._session.outputs[0].shape[-1]

    def encode(self, texts: Sequence[str]) -> tuple[Array, Array]:
        """(vectors, tokens) of texts: FP32 [n, dimension] and INT32 [n]."""
        tokens = self._tokens(texts)
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        for rows in self._runs([len(ids) for ids in tokens]):
            vectors[rows] = self._means([tokens[row] for row in rows])
        return vectors, np.array([len(ids) for ids in tokens], np.int32)

    def states(self, texts: Sequence[str]) -> list[Array]:
        """For each text a vector of length 1 for each of its tokens, but for the two that frame it: FP32 [t, d]."""
        tokens = self._tokens(texts)
        found: list[Array] = [np.zeros((0, self.dimension), np.float32)] * len(texts)
        for rows in self._runs([len(ids) for ids in tokens]):
            states, _ = self._run([tokens[row] for row in rows])
            for row, matrix in zip(rows, states, strict=True):
                inner = matrix[1 : len(tokens[row]) - 1]
                found[row] = inner / np.maximum(np.linalg.norm(inner, axis=1, keepdims=True), 1e-12)
        return found

    def _tokens(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]

    def _runs(self, lengths: list[int]) -> Iterator[list[int]]:
        """Which texts are computed together: of about one length, and not too many."""
        run: list[int] = []
        for row in sorted(range(len(lengths)), key=lengths.__getitem__):
            full = (len(run) + 1) * lengths[row] > TOKENS_PER_RUN
            if run and (full or self._mixes_rows or lengths[row] > PADDING * lengths[run[0]]):
                yield run
                run = []
            run.append(row)
        if run:
            yield run

    @cached_property
    def _mixes_rows(self) -> bool:
        """Whether the graph quantises activations as it runs: with a scale of the whole run, neighbours included.

        Such a graph gets one text at a time. Looked up when the first two texts come together, not while loading.
        """
        with open(self._model, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as graph:
            return graph.find(b"DynamicQuantize") >= 0

    def _means(self, tokens: list[list[int]]) -> Array:
        states, mask = self._run(tokens)
        weights = mask[:, :, None].astype(np.float32)
        means: Array = (states * weights).sum(axis=1) / weights.sum(axis=1)
        means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
        return means

    def _run(self, tokens: list[list[int]]) -> tuple[Array, Array]:
        """(states, mask) of texts of about one length: [n, t, dimension] and [n, t]."""
        longest = max(map(len, tokens))
        ids = np.zeros((len(tokens), longest), np.int64)
        mask = np.zeros_like(ids)
        for row, sequence in enumerate(tokens):
            ids[row, : len(sequence)] = sequence
            mask[row, : len(sequence)] = 1
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        computed = self._session.run({spec.name: given[spec.name] for spec in self._session.inputs})
        return computed[self._session.outputs[0].name], mask
