"""Writes a document's embedded chunks into the vector store."""

from __future__ import annotations

from typing import Any

from relight import sdk
from relight.retrieval.documents import Pieces
from relight.retrieval.milvus import Milvus
from relight.retrieval.vectors import Row, VectorStore


class Index(sdk.Step):
    """``dev.relight.embedded.v1`` to ``dev.relight.indexed.v1``.

    The document is replaced: the same event twice changes nothing, and of a document that became shorter no chunk of
    before stays. Milvus that is down is a 503, which the broker tries again.
    """

    reply_type = "dev.relight.indexed.v1"
    store: VectorStore

    def load(self) -> None:
        uri = self.context.env.get("MILVUS_URI")
        if not uri:
            raise ValueError(
                "MILVUS_URI is not set: expected the address of a Milvus server, such as http://milvus:19530"
            )
        # It connects at the first document: Milvus that is down now is no reason to be unable for good.
        self.store = Milvus(uri, self.context.env.get("MILVUS_COLLECTION") or "documents")

    def run(self, data: Any, event: sdk.Event | None) -> dict[str, Any]:
        pieces = Pieces.parse(data, vectors=True)
        metadata = {**pieces.metadata, **({"title": pieces.title} if pieces.title is not None else {})}
        rows = [Row(pieces.document, chunk.id, chunk.text, chunk.vector or (), metadata) for chunk in pieces.chunks]
        if rows:
            self.store.ensure(len(rows[0].vector))
            self.store.upsert(rows)
        # After the new is written: at no moment is the document missing.
        self.store.delete(pieces.document, keep=[chunk.id for chunk in pieces.chunks])
        return {"document": pieces.document, "chunks": len(rows)}

    def unload(self) -> None:
        self.store.close()


def new() -> Index:
    return Index()
