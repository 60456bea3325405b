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


@dataclass(frozen=True)
class Sides:
    """What each side of a hybrid answers to one question, DEPTH deep: the same for every way to fuse them."""

    words: list[Hit]
    dense: list[Hit]


def sides_of(corpus: Corpus, asked: QuerySet, vectors: Array) -> list[Sides]:
    """Ask both sides every question. ``vectors``: of the questions, in their order."""
    found = []
    for text, dense in zip(asked.questions.values(), _dense(corpus, vectors), strict=True):
        words = [Hit(key, "", "", score) for key, score in corpus.words.best(text, DEPTH)]
        found.append(Sides(words, dense))
    return found


def evaluate(
    corpus: Corpus,
    asked: QuerySet,
    sides: Sequence[Sides],
    modes: Sequence[str] = MODES,
    *,
    fusion: Fusion | None = None,
    reranker: Reranker | None = None,
    depth: int = 20,
) -> list[Score]:
    """What each mode reaches with these answers; ``depth``: how many of a hybrid's are reranked."""
    values: dict[str, dict[str, list[float]]] = {mode: {name: [] for name in MEASURES} for mode in modes}
    for (name, text), both in zip(asked.questions.items(), sides, strict=True):
        for mode in modes:
            ranking = _ranking(corpus, text, both, mode, fusion or Fusion(), reranker, depth)
            for one, value in measure(ranking, asked.relevant[name]).items():
                values[mode][one].append(value)
    return [Score(mode, values[mode]) for mode in modes]


def _ranking(
    corpus: Corpus, text: str, both: Sides, mode: str, fusion: Fusion, reranker: Reranker | None, depth: int
) -> list[str]:
    if mode in ("bm25", "dense"):
        return [hit.document for hit in (both.words if mode == "bm25" else both.dense)]
    hits = fuse({"dense": both.dense, "bm25": both.words}, DEPTH, fusion.weights, fusion.method)
    names = [hit.document for hit in hits]
    if mode == "hybrid+rerank" and reranker is not None:
        scores = reranker.score(text, [corpus.texts[name] for name in names[:depth]])
        order = sorted(range(len(scores)), key=lambda row: -scores[row])
        names = [names[row] for row in order] + names[depth:]
    return names


def _dense(corpus: Corpus, vectors: Array) -> Iterator[list[Hit]]:
    names = list(corpus.texts)
    for at in range(0, len(vectors), BLOCK):
        for scores in np.asarray(vectors[at : at + BLOCK]) @ corpus.vectors.T:
            yield [Hit(names[row], "", "", float(scores[row])) for row in top(scores, DEPTH)]
