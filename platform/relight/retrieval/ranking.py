"""Rankings of a whole corpus in this process, in every mode: what an evaluation compares.

The same analysis, BM25, fusion and reranking as in the functions; the dense side is exact, so that what is measured is
the way of searching, and what an index loses is ``quality``'s to measure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from relight.retrieval.evaluation import MEASURES, Interval, QuerySet, interval, measure
from relight.retrieval.fusion import fuse
from relight.retrieval.lexical import Bm25, top
from relight.retrieval.reranking import Reranker
from relight.retrieval.searching import DEPTH, Fusion
from relight.retrieval.vectors import Hit
from relight.wire.tensors import Array

MODES = ("bm25", "dense", "hybrid", "hybrid+rerank")
BLOCK = 64
"""Questions that are compared with all documents at once: bounds the matrix of scores."""


@dataclass(frozen=True)
class Corpus:
    """Documents with their vectors (FP32 [n, d], of length 1) and their words."""

    texts: Mapping[str, str]
    vectors: Array
    words: Bm25

    @classmethod
    def of(cls, texts: Mapping[str, str], vectors: Array) -> Corpus:
        return cls(texts, vectors, Bm25.of(texts.items()))


@dataclass(frozen=True)
class Score:
    """What one mode reached over a query set: per question, and with intervals."""

    mode: str
    values: Mapping[str, Sequence[float]]

    def intervals(self) -> dict[str, Interval]:
        return {name: interval(values) for name, values in self.values.items()}


def evaluate(
    corpus: Corpus,
    asked: QuerySet,
    vectors: Array,
    modes: Sequence[str] = MODES,
    *,
    fusion: Fusion | None = None,
    reranker: Reranker | None = None,
    depth: int = 20,
) -> list[Score]:
    """Ask every question in every mode. ``vectors``: of the questions, in their order; ``depth``: of reranking."""
    values: dict[str, dict[str, list[float]]] = {mode: {name: [] for name in MEASURES} for mode in modes}
    questions = list(asked.questions.items())
    for (name, text), dense in zip(questions, _dense(corpus, vectors), strict=True):
        rankings = _rankings(corpus, text, dense, modes, fusion or Fusion(), reranker, depth)
        for mode in modes:
            for one, value in measure(rankings[mode], asked.relevant[name]).items():
                values[mode][one].append(value)
    return [Score(mode, values[mode]) for mode in modes]


def _rankings(
    corpus: Corpus,
    text: str,
    dense: list[Hit],
    modes: Sequence[str],
    fusion: Fusion,
    reranker: Reranker | None,
    depth: int,
) -> dict[str, list[str]]:
    words = [Hit(key, "", "", score) for key, score in corpus.words.best(text, DEPTH)]
    hybrid = fuse({"dense": dense, "bm25": words}, DEPTH, fusion.weights, fusion.method)
    found = {"bm25": words, "dense": dense, "hybrid": hybrid}
    if "hybrid+rerank" in modes and reranker is not None:
        head = hybrid[:depth]
        scores = reranker.score(text, [corpus.texts[hit.document] for hit in head])
        order = sorted(range(len(head)), key=lambda row: -scores[row])
        found["hybrid+rerank"] = [head[row] for row in order] + hybrid[depth:]
    return {mode: [hit.document for hit in hits] for mode, hits in found.items()}


def _dense(corpus: Corpus, vectors: Array) -> Iterator[list[Hit]]:
    names = list(corpus.texts)
    for at in range(0, len(vectors), BLOCK):
        for scores in np.asarray(vectors[at : at + BLOCK]) @ corpus.vectors.T:
            yield [Hit(names[row], "", "", float(scores[row])) for row in top(scores, DEPTH)]
