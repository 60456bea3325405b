"""Which vector store a function or a command uses: by one URL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from relight.base.errors import BadInput
from relight.retrieval.vectors import VectorStore

EXPECTED = (
    "expected http://HOST:PORT (Milvus), milvus://HOST:PORT, postgresql://USER@HOST/DATABASE (with pgvector), "
    "qdrant://HOST:PORT, qdrant+https://HOST or qdrant:///FOLDER"
)


def store_of(environ: Mapping[str, str], cache: Path | None = None) -> VectorStore:
    """The store of ``VECTOR_STORE``, else of ``MILVUS_URI``, which local mode sets; not connected yet.

    ``cache``: a folder of this node for what can be made again.

    ValueError where neither is set, BadInput for a URL that is none of a store.
    """
    url = environ.get("VECTOR_STORE") or environ.get("MILVUS_URI")
    if not url:
        raise ValueError(
            "MILVUS_URI is not set: expected the address of a Milvus server, such as http://milvus:19530, "
            "or another store's in VECTOR_STORE"
        )
    collection = environ.get("VECTOR_COLLECTION") or environ.get("MILVUS_COLLECTION") or "documents"
    return open_store(url, collection, cache=cache / "words" / collection if cache is not None else None)


def open_store(
    url: str, collection: str = "documents", *, timeout: float = 10.0, cache: Path | None = None
) -> VectorStore:
    """The store at a URL. Each driver is imported only when it is asked for: none needs another's client."""
    scheme, _, rest = url.partition("://")
    if scheme in ("http", "https", "milvus") and rest:
        from relight.retrieval.milvus import Milvus

        return Milvus(f"http://{rest}" if scheme == "milvus" else url, collection, timeout=timeout, cache=cache)
    if scheme in ("postgresql", "postgres") and rest:
        from relight.retrieval.pgvector import PgVector

        return PgVector(url, collection, timeout=timeout, cache=cache)
    if scheme in ("qdrant", "qdrant+http", "qdrant+https") and rest:
        from relight.retrieval.qdrant import Qdrant

        return Qdrant(rest if rest.startswith("/") else f"{scheme[7:] or 'http'}://{rest}", collection, timeout=timeout)
    raise BadInput(f"{url!r} is no vector store's URL: {EXPECTED}", param="VECTOR_STORE")
