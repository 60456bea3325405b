"""The order of a few candidates by a closer look at each: a cross-encoder, or late interaction where there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from tokenizers import Tokenizer

from relight.backends.onnxruntime import OnnxRuntime
from relight.retrieval.encoder import Encoder, Session, read_tokenizer
from relight.wire.tensors import Array

MAX_PAIR_TOKENS = 512
"""Of question and text together, as cross-encoders of BERT's kind are trained."""


class Reranker(Protocol):
    """Scores texts by how well they answer a question: more is better, within one call."""

    kind: str

    def score(self, question: str, texts: Sequence[str]) -> list[float]:
        """One score for each text."""


class LateInteraction:
    """Khattab & Zaharia's (2020) MaxSim with an encoder's own token states: no model beyond the encoder is needed.

    For each token of the question the best cosine among the tokens of the text, and the mean of these. The encoder was
    not trained for it, so this orders less well than a cross-encoder would.
    """

    kind = "late-interaction"

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def score(self, question: str, texts: Sequence[str]) -> list[float]:
        asked, *found = self._encoder.states([question, *texts])
        return [_max_sim(asked, states) for states in found]


class CrossEncoder:
    """A model that reads question and text together and gives one number: ONNX, with logits of [n, 1] or [n, 2]."""

    kind = "cross-encoder"

    def __init__(self, session: Session, tokenizer: Tokenizer) -> None:
        self._session = session
        self._tokenizer = tokenizer

    def score(self, question: str, texts: Sequence[str]) -> list[float]:
        return [self._pair(question, text) for text in texts]

    def _pair(self, question: str, text: str) -> float:
        # One at a time: an int8 graph quantises with a scale of the whole run, so that neighbours change a score.
        encoding = self._tokenizer.encode(question, text)
        given: Mapping[str, Array] = {
            "input_ids": np.array([encoding.ids], np.int64),
            "attention_mask": np.array([encoding.attention_mask], np.int64),
            "token_type_ids": np.array([encoding.type_ids], np.int64),
        }
        computed = self._session.run({spec.name: given[spec.name] for spec in self._session.inputs})
        logits = computed[self._session.outputs[0].name].reshape(-1)
        return float(logits[0] if len(logits) == 1 else logits[-1] - logits[0])


def is_cross_encoder(session: Session) -> bool:
    """Whether a model gives a number for a pair, and not states for tokens: by the shape of its output."""
    return len(session.outputs[0].shape) <= 2


def read_pair_tokenizer(files: Path) -> Tokenizer:
    """The tokenizer of a cross-encoder's folder: the text is cut where the two are too long, the question is not."""
    tokenizer = Tokenizer.from_file(str(files / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_PAIR_TOKENS, strategy="only_second")
    return tokenizer


def _max_sim(asked: Array, states: Array) -> float:
    if not len(asked) or not len(states):
        return 0.0
    return float((asked @ states.T).max(axis=1).mean())


def open_reranker(files: Path, cache: Path | None = None, digest: str | None = None) -> Reranker:
    """The reranker that a model's folder (``model.onnx``, ``tokenizer.json``) is good for."""
    session = OnnxRuntime().open(files / "model.onnx", cache=cache, digest=digest)
    if is_cross_encoder(session):
        return CrossEncoder(session, read_pair_tokenizer(files))
    return LateInteraction(Encoder(files, session, read_tokenizer(files)))
