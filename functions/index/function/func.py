"""Writes a document's embedded chunks into the vector store."""

from __future__ import annotations

from typing import Any

from relight import sdk
from relight.retrieval.documents import Piece, Pieces
from relight.retrieval.stores import store_of
from relight.retrieval.variables import one_of
from relight.retrieval.vectors import DEFAULT_TENANT, METRICS, Row, Space, VectorStore


class Index(sdk.Step):
    """``dev.relight.embedded.v1`` to ``dev.relight.indexed.v1``.

    The document is replaced: the same event twice changes nothing, and of a document that became shorter no chunk of
    before stays. A store that is down is a 503, which the broker tries again. Vectors of another model than the
    collection's are refused.
    """

    reply_type = "dev.relight.indexed.v1"
    store: VectorStore

    def load(self) -> None:
        # It connects at the first document: a store that is down now is no reason to be unable for good.
        self.store = store_of(self.context.env)
        self._metric = one_of(self.context.env, "VECTOR_METRIC", METRICS, "cosine")

    def run(self, data: Any, event: sdk.Event | None) -> dict[str, Any]:
        pieces = Pieces.parse(data, vectors=True)
        tenant = pieces.tenant or DEFAULT_TENANT
        metadata = {**pieces.metadata, **({"title": pieces.title} if pieces.title is not None else {})}
        rows = [
            Row(pieces.document, chunk.id, chunk.text, chunk.vector or (), {**metadata, **_place(chunk)}, tenant)
            for chunk in pieces.chunks
        ]
        if rows:
            self.store.ensure(Space(len(rows[0].vector), pieces.model, self._metric))
            self.store.upsert(rows)
        # After the new is written: at no moment is the document missing.
        self.store.delete(pieces.document, keep=[chunk.id for chunk in pieces.chunks], tenant=tenant)
        return {"document": pieces.document, "chunks": len(rows)}

    def unload(self) -> None:
        self.store.close()


def _place(chunk: Piece) -> dict[str, Any]:
    """Where in the document it stood, to be shown and to be filtered by."""
    known = {"heading": chunk.heading, "page": chunk.page, "start": chunk.start, "end": chunk.end}
    return {name: value for name, value in known.items() if value is not None}


def new() -> Index:
    return Index()
