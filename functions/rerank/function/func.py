"""Brings a few candidates into a better order by a closer look at each."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

from relight import sdk
from relight.retrieval.reranking import Reranker, open_reranker

MAX_TEXTS = 200


class Rerank(sdk.Step):
    """``{"query": text, "hits": [{"text": ...}, ...], "k": 10}`` to the best of the hits, best first.

    With a cross-encoder in the model repository (``RELIGHT_MODEL``) by that; with an encoder, whose output has a state
    for each token, by late interaction. What a hit has beside ``text`` comes back as it was, and so does what retrieve
    said of its answer: by events ``dev.relight.hits.v1`` becomes ``dev.relight.reranked.v1``, another type, so that a
    Trigger for hits does not send them round and round.
    """

    uses_repository: ClassVar[bool] = True
    reply_type = "dev.relight.reranked.v1"
    concurrency = 2
    reranker: Reranker

    def load(self) -> None:
        files = self.context.files
        if files is None or not (files / "tokenizer.json").is_file():
            raise sdk.NotFound(f"model {self.context.model!r} version {self.context.version} has no tokenizer.json")
        self.reranker = open_reranker(files, self.context.cache, self.context.digest)

    def warmup(self) -> None:
        self.reranker.score("a question", ["a text"])

    def run(self, data: Any, event: sdk.Event | None) -> dict[str, Any]:
        query, hits, k = _parse(data)
        begun = time.perf_counter()
        scores = self.reranker.score(query, [str(hit["text"]) for hit in hits])
        order = sorted(range(len(hits)), key=lambda row: -scores[row])[:k]
        said = {name: data[name] for name in ("mode", "degraded") if name in data}
        return {
            **said,
            "query": query,
            "reranker": self.reranker.kind,
            "model": self.context.env.get("RELIGHT_MODEL") or self.context.model,
            "hits": [{**hits[row], "rerank_score": round(scores[row], 6)} for row in order],
            "timings": {**_timings(data), "rerank_ms": round((time.perf_counter() - begun) * 1000, 3)},
        }


def _parse(data: Any) -> tuple[str, list[Mapping[str, Any]], int]:
    if not isinstance(data, Mapping):
        raise sdk.BadInput('expected JSON such as {"query": "read a zip file", "hits": [{"text": "..."}]}')
    query, hits = data.get("query"), data.get("hits")
    problems = []
    if not isinstance(query, str) or not query.strip():
        problems.append(sdk.Problem("query", "expected a text"))
    if not isinstance(hits, list) or len(hits) > MAX_TEXTS:
        problems.append(sdk.Problem("hits", f"expected an array of at most {MAX_TEXTS}"))
        hits = []
    for at, hit in enumerate(hits):
        if not isinstance(hit, Mapping) or not isinstance(hit.get("text"), str):
            problems.append(sdk.Problem(f"hits[{at}].text", "expected a string"))
    k = data.get("k", len(hits) or 1)
    if type(k) is not int or k < 1:
        problems.append(sdk.Problem("k", "expected a whole number from 1"))
    if problems:
        raise sdk.BadInput.of(problems)
    return str(query), hits, k


def _timings(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the steps before took."""
    before = data.get("timings")
    return before if isinstance(before, Mapping) else {}


def new() -> Rerank:
    return Rerank()
