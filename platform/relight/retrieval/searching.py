"""A search in one of its modes: by vectors, by words, or by both together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from relight.base.errors import RelightError
from relight.retrieval.fusion import fuse
from relight.retrieval.vectors import MAX_K, Hit, Query, VectorStore

MODES = ("hybrid", "dense", "bm25")
FUSIONS = ("rrf", "weighted")
DEPTH = 100
"""Of each ranking that is fused: what is deeper in one list alone does not come up among the first ten."""


@dataclass(frozen=True)
class Fusion:
    """How the two rankings become one. Weights: of the sides ``dense`` and ``bm25``.

    The default is what ``benchmarks/retrieval.py`` picks: scores, equally weighted, lead ranks by 0.02 nDCG@10.
    """

    method: str = "weighted"
    weights: Mapping[str, float] = field(default_factory=lambda: {"dense": 1.0, "bm25": 1.0})


@dataclass(frozen=True)
class Found:
    """An answer: ``mode`` is how it was found, which is not what was asked where a side of a hybrid failed.

    ``timings``: seconds by step. ``missing``: the reason for each side that is not in it.
    """

    hits: list[Hit]
    mode: str
    timings: Mapping[str, float]
    missing: Mapping[str, str] = field(default_factory=dict)


class Searcher:
    """Searches one store. ``encode`` gives a query's vector and may take as long as a cold encoder needs."""

    def __init__(self, store: VectorStore, encode: Callable[[str], Sequence[float]], fusion: Fusion) -> None:
        self.store = store
        self._encode = encode
        self._fusion = fusion

    def search(self, text: str, query: Query, mode: str = "hybrid") -> Found:
        """Answer in a mode. A hybrid goes on with one side where the other fails, and says so."""
        timings: dict[str, float] = {}
        if mode == "bm25":
            return Found(self._words(text, query, timings), mode, timings)
        if mode == "dense":
            return Found(self._dense(text, query, timings), mode, timings)
        # An answer further down the list needs longer lists to be fused: those of page 2 begin where page 1 ended.
        deep = replace(query, k=min(MAX_K, max(DEPTH, 2 * (query.k + query.offset))), offset=0)
        with ThreadPoolExecutor(1) as beside:
            words = beside.submit(self._words, text, deep, timings)
            rankings: dict[str, list[Hit]] = {}
            failed: dict[str, RelightError] = {}
            try:
                rankings["dense"] = self._dense(text, deep, timings)
            except RelightError as error:
                failed["dense"] = error
            try:
                rankings["bm25"] = words.result()
            except RelightError as error:
                failed["bm25"] = error
        if not rankings or any(error.status < 500 for error in failed.values()):
            raise next(iter(failed.values()))
        begun = time.perf_counter()
        wanted = query.k + query.offset
        if failed:
            (mode,) = rankings
            hits = rankings[mode][:wanted]
        else:
            hits = fuse(rankings, wanted, self._fusion.weights, self._fusion.method)
        timings["fuse"] = time.perf_counter() - begun
        return Found(hits[query.offset :], mode, timings, {side: error.message for side, error in failed.items()})

    def _dense(self, text: str, query: Query, timings: dict[str, float]) -> list[Hit]:
        begun = time.perf_counter()
        vector = self._encode(text)
        encoded = time.perf_counter()
        timings["embed"] = encoded - begun
        try:
            return self.store.search(vector, query)
        finally:
            timings["search"] = time.perf_counter() - encoded

    def _words(self, text: str, query: Query, timings: dict[str, float]) -> list[Hit]:
        begun = time.perf_counter()
        try:
            return self.store.search_text(text, query)
        finally:
            timings["words"] = time.perf_counter() - begun
