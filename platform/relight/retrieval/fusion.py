"""Two rankings to one: by reciprocal ranks, or by weighted scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relight.retrieval.vectors import Hit

RRF_K = 60
"""Of reciprocal rank fusion, as in its paper (Cormack, Clarke & Büttcher 2009)."""


def fuse(rankings: Mapping[str, Sequence[Hit]], k: int, weights: Mapping[str, float], method: str = "rrf") -> list[Hit]:
    """The best ``k`` of several rankings, best first; ``score`` is the fused one.

    ``rrf``: the sum of weight / (60 + rank), which needs no scores that compare. ``weighted``: the sum of the weighted
    scores, each ranking's brought to 0..1 between its lowest and highest.
    """
    scores: dict[tuple[str, str], float] = {}
    hits: dict[tuple[str, str], Hit] = {}
    for name, ranking in rankings.items():
        parts = _by_rank(ranking) if method == "rrf" else _by_score(ranking)
        for hit, part in zip(ranking, parts, strict=True):
            key = (hit.document, hit.chunk)
            hits.setdefault(key, hit)
            scores[key] = scores.get(key, 0.0) + weights.get(name, 1.0) * part
    # Of equal ones, the first that was found: the order is the same from one call to the next.
    best = sorted(scores, key=lambda key: -scores[key])[:k]
    return [Hit(*key, hits[key].text, scores[key], hits[key].metadata) for key in best]


def _by_rank(ranking: Sequence[Hit]) -> list[float]:
    return [1.0 / (RRF_K + rank) for rank in range(1, len(ranking) + 1)]


def _by_score(ranking: Sequence[Hit]) -> list[float]:
    if not ranking:
        return []
    scores = [hit.score for hit in ranking]
    low, high = min(scores), max(scores)
    # A ranking of one, or of equal ones, has said that they match: not that they are the worst.
    return [(score - low) / (high - low) if high > low else 1.0 for score in scores]
