"""One URL for a search: retrieve, then rerank, within one deadline; without what is slow or down, as declared."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from relight import sdk
from relight.retrieval.questions import FIELDS, Question
from relight.retrieval.remote import RemoteSearch, RemoteStep
from relight.retrieval.variables import flag, whole

TIMEOUT = 30.0
"""Seconds for the whole: two functions from zero included."""
MAX_TIMEOUT = 300.0
DEPTH = 20
"""Hits that are given to rerank."""
RERANK_TIMEOUT = 3.0
"""Seconds that a better order is waited for where the question does not say for how long an answer may be."""


class Search(sdk.Step):
    """``{"query": text, "k": 5, "rerank": true, "timeout_ms": 2000}`` to ranked hits, best first.

    Takes what retrieve takes, and these two. Reranking may be missing from the answer, which then says so under
    ``degraded``; retrieving may not. ``"degrade": false`` makes every missing step an error.
    """

    reply_type = "dev.relight.hits.v1"
    retrieve: RemoteStep
    reranker: RemoteStep | None = None

    def load(self) -> None:
        env = self.context.env
        if not env.get("RETRIEVE_URL"):
            raise ValueError("RETRIEVE_URL is not set: expected the URL of the function retrieve")
        router = env.get("RELIGHT_ROUTER")
        self.retrieve = RemoteSearch("retrieve", env["RETRIEVE_URL"], MAX_TIMEOUT, router, "RETRIEVE_URL")
        if env.get("RERANK_URL"):
            self.reranker = RemoteStep("rerank", env["RERANK_URL"], MAX_TIMEOUT, router, "RERANK_URL")
        self._rerank = flag(env, "SEARCH_RERANK")
        self._depth = whole(env, "SEARCH_RERANK_DEPTH", DEPTH, low=1) or DEPTH

    def run(self, data: Any, event: sdk.Event | None) -> dict[str, Any]:
        question = Question.parse(data, "hybrid", ("rerank", "timeout_ms"))
        rerank, seconds = self._options(data)
        until = time.monotonic() + seconds
        headers = sdk.headers_onward(event)
        wanted = {name: data[name] for name in FIELDS if name in data}
        # The order of one page is made from the first page on: page 2 of another order would repeat hits of page 1.
        too_deep = rerank and question.offset + question.k > self._depth
        rerank = rerank and not too_deep
        if rerank:
            wanted |= {"k": self._depth, "offset": 0}
            wanted.pop("output_fields", None)  # rerank reads the text, whoever gets it
        begun = time.monotonic()
        found = self.retrieve.call(wanted, headers, timeout=until - begun)
        retrieved = time.monotonic()
        answer: dict[str, Any] = {"query": question.text, "mode": found["mode"], "hits": found["hits"]}
        degraded = dict(found.get("degraded") or {})
        if too_deep and "rerank" in data:
            degraded["rerank"] = f"only the best {self._depth} are reranked, and k + offset asks for more"
        timings = {**found.get("timings", {}), "retrieve_ms": _ms(retrieved - begun)}
        if rerank and found["hits"]:
            try:
                patience = MAX_TIMEOUT if data.get("timeout_ms") else RERANK_TIMEOUT
                better = self._better(question, found["hits"], headers, min(patience, until - retrieved))
                answer |= {"hits": better["hits"], "reranker": better["reranker"]}
            except (sdk.NotReady, sdk.Deadline) as error:
                if not question.degrade:
                    raise
                degraded["rerank"] = error.message
            timings["rerank_ms"] = _ms(time.monotonic() - retrieved)
        if rerank:
            page = answer["hits"][question.offset : question.offset + question.k]
            answer["hits"] = [question.shown(hit) for hit in page]
        if degraded:
            answer["degraded"] = degraded
        return {**answer, "timings": timings}

    def _better(self, question: Question, hits: list[Any], headers: Mapping[str, str], left: float) -> dict[str, Any]:
        if self.reranker is None:
            raise sdk.NotReady("step rerank is not configured: RERANK_URL is not set")
        found: dict[str, Any] = self.reranker.call({"query": question.text, "hits": hits}, headers, timeout=left)
        return found

    def _options(self, data: Mapping[str, Any]) -> tuple[bool, float]:
        """(rerank, seconds). What the caller of this call has left of its own time is the most there is."""
        problems = []
        rerank, timeout = data.get("rerank", self._rerank), data.get("timeout_ms")
        if not isinstance(rerank, bool):
            problems.append(sdk.Problem("rerank", "expected true or false"))
        if timeout is not None and (type(timeout) is not int or not 1 <= timeout <= MAX_TIMEOUT * 1000):
            problems.append(sdk.Problem("timeout_ms", f"expected a whole number from 1 to {MAX_TIMEOUT * 1000:.0f}"))
        if problems:
            raise sdk.BadInput.of(problems)
        seconds = TIMEOUT if timeout is None else timeout / 1000
        current = sdk.current_request()
        left = current.seconds_left if current is not None else None
        return bool(rerank), seconds if left is None else min(seconds, left)

    def unload(self) -> None:
        self.retrieve.close()
        if self.reranker is not None:
            self.reranker.close()


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def new() -> Search:
    return Search()
