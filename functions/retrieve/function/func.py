"""Finds the chunks that are nearest to a question."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any

from relight import sdk
from relight.retrieval.milvus import Milvus
from relight.retrieval.vectors import VectorStore

from .embedding import RemoteEncoder

MAX_K = 100
EMBED_TIMEOUT = 30.0
"""Seconds for the query's vector: a cold encoder included, a dead one not waited for."""


class Retrieve(sdk.Step):
    """``{"query": text, "k": 5, "filter": {field: value}}`` to ranked hits, best first.

    ``filter`` is equality on ``document`` or on fields of the metadata. What was indexed before the question is found.
    """

    reply_type = "dev.relight.hits.v1"
    store: VectorStore
    encoder: RemoteEncoder

    def load(self) -> None:
        env = self.context.env
        missing = [name for name in ("MILVUS_URI", "EMBED_URL") if not env.get(name)]
        if missing:
            raise ValueError(f"{' and '.join(missing)} not set: expected the URLs of Milvus and of the function embed")
        self.store = Milvus(env["MILVUS_URI"], env.get("MILVUS_COLLECTION") or "documents")
        self.encoder = RemoteEncoder(
            env["EMBED_URL"], env.get("EMBED_MODEL") or "minilm", EMBED_TIMEOUT, env.get("RELIGHT_ROUTER")
        )

    def run(self, data: Any, event: sdk.Event | None) -> dict[str, Any]:
        query, k, where = _parse(data)
        begun = time.perf_counter()
        vector = self.encoder.encode(query, _tracing(event))
        embedded = time.perf_counter()
        hits = self.store.search(vector, k, where)
        searched = time.perf_counter()
        return {
            "query": query,
            "hits": [
                {
                    "document": hit.document,
                    "chunk": hit.chunk,
                    "text": hit.text,
                    "score": hit.score,
                    **({"metadata": dict(hit.metadata)} if hit.metadata else {}),
                }
                for hit in hits
            ],
            "timings": {"embed_ms": _ms(embedded - begun), "search_ms": _ms(searched - embedded)},
        }

    def unload(self) -> None:
        self.encoder.close()
        self.store.close()


def _parse(data: Any) -> tuple[str, int, Mapping[str, Any]]:
    if not isinstance(data, dict):
        raise sdk.BadInput('expected JSON such as {"query": "parse command line options", "k": 5}')
    query, k, where = data.get("query"), data.get("k", 5), data.get("filter") or {}
    problems = []
    if not isinstance(query, str) or not query.strip():
        problems.append(sdk.Problem("query", "expected a text"))
    if type(k) is not int or not 1 <= k <= MAX_K:
        problems.append(sdk.Problem("k", f"expected a whole number from 1 to {MAX_K}"))
    if not isinstance(where, dict):
        problems.append(sdk.Problem("filter", "expected an object of fields and values"))
    for key in data.keys() - {"query", "k", "filter"}:
        problems.append(sdk.Problem(key, "unknown; expected query, k or filter"))
    if problems:
        raise sdk.BadInput.of(problems)
    return str(query), k, where


def _tracing(event: sdk.Event | None) -> dict[str, str]:
    """What ties the call of embed to this one: the request's id and trace, or the event's, or an id of its own."""
    current = sdk.current_request()
    headers = {"x-request-id": str(uuid.uuid4())} | (current.passed_on() if current is not None else {})
    for name in ("traceparent", "tracestate"):
        if event is not None and event.get(name):
            headers[name] = str(event.get(name))
    return headers


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def new() -> Retrieve:
    return Retrieve()
