"""Finds the chunks that answer a question best: by words, by meaning, or both together."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

from relight import sdk
from relight.retrieval.caching import ENTRIES, ResultCache, cache_key
from relight.retrieval.quality import Recall, RecallWatch, RollingSample
from relight.retrieval.questions import Question
from relight.retrieval.remote import RemoteEncoder
from relight.retrieval.searching import FUSIONS, MODES, Found, Fusion, Searcher
from relight.retrieval.stores import store_of
from relight.retrieval.variables import one_of, seconds, whole
from relight.retrieval.vectors import Hit, Space, VectorStore, check_space

log = logging.getLogger("relight.retrieve")

EMBED_TIMEOUT = 30.0
"""Seconds for the query's vector: a cold encoder included, a dead one not waited for."""


class Retrieve(sdk.Step):
    """``{"query": text, "k": 5, "filter": {field: value}}`` to ranked hits, best first.

    What was indexed before the question is found. Answers are kept until something is written to the collection.
    """

    reply_type = "dev.relight.hits.v1"
    store: VectorStore
    encoder: RemoteEncoder

    def load(self) -> None:
        env = self.context.env
        missing = ["EMBED_URL"] if not env.get("EMBED_URL") else []
        if not (env.get("VECTOR_STORE") or env.get("MILVUS_URI")):
            missing.insert(0, "MILVUS_URI")
        if missing:
            raise ValueError(f"{' and '.join(missing)} not set: expected the URLs of Milvus and of the function embed")
        self.store = store_of(env, self.context.cache)
        self.encoder = RemoteEncoder(
            env["EMBED_URL"], env.get("EMBED_MODEL") or "minilm", EMBED_TIMEOUT, env.get("RELIGHT_ROUTER")
        )
        self._mode = one_of(env, "RETRIEVE_MODE", MODES, "hybrid")
        method = one_of(env, "RETRIEVE_FUSION", FUSIONS, "weighted")
        self._fusion = Fusion(method, _weights(env.get("RETRIEVE_WEIGHTS") or "dense=1,bm25=1"))
        self._cache: ResultCache[Found] = ResultCache(whole(env, "RESULT_CACHE", ENTRIES) or 0)
        self._sample = RollingSample()
        # On a store of its own: a scan must not be in the way of searches.
        self._watch = RecallWatch(store_of(env), self._sample, self._tell, seconds(env, "RECALL_EVERY", 0.0))
        self._watch.start()

    def run(self, data: Any, event: sdk.Event | None) -> dict[str, Any]:
        question = Question.parse(data, self._mode)
        begun = time.perf_counter()
        key = cache_key(question.text, {"query": question.query(), "mode": question.mode, "model": self.encoder.model})
        # Read before the search: a write that comes during it makes the answer stale, not wrong for good.
        version = self.store.version()
        found = self._cache.get(key, version)
        cached = found is not None
        if found is None:
            found = self._search(question, event)
            if not found.missing:
                self._cache.put(key, version, found)
        timings = {} if cached else {f"{step}_ms": _ms(seconds) for step, seconds in found.timings.items()}
        answer: dict[str, Any] = {
            "query": question.text,
            "mode": found.mode,
            "hits": [question.shown(_told(hit)) for hit in found.hits],
            "timings": {**timings, "total_ms": _ms(time.perf_counter() - begun)},
        }
        if cached:
            answer["cached"] = True
        if found.missing:
            answer["degraded"] = dict(found.missing)
        return answer

    def _search(self, question: Question, event: sdk.Event | None) -> Found:
        headers, until = sdk.headers_onward(event), _deadline()

        def encode(text: str) -> list[float]:
            left = None if until is None else until - time.monotonic()
            vector = self.encoder.encode(text, headers, left)
            space = self.store.space()
            if space is not None:
                if not question.where:
                    self._sample.add(vector, question.tenant)
                check_space(Space(len(vector), self.encoder.model, space.metric), self.store.collection, space)
            return vector

        found = Searcher(self.store, encode, self._fusion).search(question.text, question.query(), question.mode)
        if found.missing and not question.degrade:
            raise sdk.NotReady(f"a side of the search failed: {'; '.join(found.missing.values())}", retry_after=1)
        return found

    def _tell(self, recall: Recall | None) -> None:
        value = recall.value if recall is not None else math.nan
        self.context.gauge("relight_index_recall", "Share of the true 10 nearest that the index finds", value)
        questions = recall.questions if recall is not None else 0
        self.context.gauge("relight_index_recall_questions", "Questions that the recall was measured on", questions)
        log.info("index.recall value=%.4f questions=%d", value, questions)

    def unload(self) -> None:
        self._watch.close()
        self.encoder.close()
        self.store.close()


def _told(hit: Hit) -> dict[str, Any]:
    metadata = {"metadata": dict(hit.metadata)} if hit.metadata else {}
    return {"document": hit.document, "chunk": hit.chunk, "text": hit.text, "score": hit.score, **metadata}


def _weights(text: str) -> dict[str, float]:
    """``dense=1,bm25=0.5``."""
    try:
        found = {name.strip(): float(value) for name, value in (one.split("=") for one in text.split(","))}
    except ValueError:
        found = {}
    if not found or not found.keys() <= {"dense", "bm25"} or min(found.values()) < 0:
        raise ValueError(f"RETRIEVE_WEIGHTS: expected weights such as dense=1,bm25=0.5, got {text!r}")
    return found


def _deadline() -> float | None:
    """When the caller stops waiting, on this process's clock; None where it did not say."""
    current = sdk.current_request()
    left = current.seconds_left if current is not None else None
    return time.monotonic() + left if left is not None else None


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def new() -> Retrieve:
    return Retrieve()
