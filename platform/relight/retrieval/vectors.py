"""The seam to vector stores: what index, retrieve, quality and rebuilding need of one.

Three drivers stand behind it, and pass the same tests: ``milvus`` (a server, or Milvus Lite in server mode),
``pgvector`` (a PostgreSQL with that extension) and ``qdrant`` (a server, or the client's own store in a folder).
"""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from relight.base.errors import BadInput, Problem
from relight.decide.indexing import IndexPlan
from relight.retrieval.filters import Condition

NAME_BYTES = 1024
"""Of a document's, a chunk's or a tenant's name."""
TEXT_BYTES = 65535
"""Of a chunk's text that is kept: Milvus's longest VARCHAR. Vectors are of the whole text."""
MAX_K = 1000
"""Results of one search, those that are skipped included."""
DEFAULT_TENANT = "default"
METRICS = ("cosine", "ip")
"""Cosine of the angle, or the inner product: of both, more is better."""
_COLLECTION = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")


@dataclass(frozen=True, slots=True)
class Space:
    """What vectors a collection holds. ``model`` made them; None where nobody said."""

    dimension: int
    model: str | None = None
    metric: str = "cosine"


@dataclass(frozen=True, slots=True)
class Row:
    """One chunk of a document with its vector. (tenant, document, chunk) identifies it: written again, it replaces."""

    document: str
    chunk: str
    text: str
    vector: Sequence[float]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tenant: str = DEFAULT_TENANT

    @property
    def key(self) -> str:
        """Of one length, and the same for the same (tenant, document, chunk)."""
        return row_key(self.tenant, self.document, self.chunk)

    @property
    def digest(self) -> str:
        """Of the content: a row with the same key and digest is there already."""
        content = json.dumps([self.text, self.metadata], sort_keys=True).encode()
        return hashlib.sha256(content + array("f", self.vector).tobytes()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Hit:
    """One answer to a search, more ``score`` being better: of vectors by the metric, of words BM25's sum."""

    document: str
    chunk: str
    text: str
    score: float
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Query:
    """What to search among: ``where`` all hold, of one ``tenant``; ``k`` answers after the first ``offset``."""

    k: int = 5
    offset: int = 0
    where: tuple[Condition, ...] = ()
    tenant: str = DEFAULT_TENANT

    def __post_init__(self) -> None:
        problems = []
        if self.k < 1:
            problems.append(Problem("k", f"expected at least 1, got {self.k}"))
        if self.offset < 0:
            problems.append(Problem("offset", f"expected 0 or more, got {self.offset}"))
        if self.k + self.offset > MAX_K:
            problems.append(Problem("k", f"expected k + offset of at most {MAX_K}, got {self.k + self.offset}"))
        if problems:
            raise BadInput.of(problems)


@dataclass(frozen=True, slots=True)
class Standing:
    """What ``relight index status`` shows: the index at work and what it stands on."""

    collection: str
    """The physical one, behind the alias."""
    rows: int
    space: Space
    index: str
    params: Mapping[str, Any]


class VectorStore(Protocol):
    """A collection of chunks. What is written is found by the next search, whoever asks.

    NotReady where the store does not answer (a retry may help); BadInput for vectors of another dimension, metric or
    model than the collection's, with both values named.
    """

    collection: str

    def ensure(self, space: Space) -> None:
        """Make the collection if it is not there; BadInput if it is, for other vectors."""

    def space(self) -> Space | None:
        """What vectors the collection holds; None where there is no collection yet."""

    def upsert(self, rows: Sequence[Row]) -> int:
        """Write rows; the number of those that were not there as they are."""

    def search(self, vector: Sequence[float], query: Query) -> list[Hit]:
        """The nearest by vector, best first; empty where there is no collection yet."""

    def search_text(self, text: str, query: Query) -> list[Hit]:
        """The best by BM25, best first; only chunks that have at least one of the words."""

    def delete(self, document: str, keep: Sequence[str] = (), tenant: str = DEFAULT_TENANT) -> None:
        """Remove a document's chunks, but for those named."""

    def scan(self, batch: int = 1000) -> Iterator[list[Row]]:
        """All rows of all tenants with their vectors, a batch at a time: memory stays flat."""

    def count(self) -> int:
        """How many chunks there are."""

    def version(self) -> str:
        """Changes with every write; empty where there is no collection yet."""

    def kinds(self) -> tuple[str, ...]:
        """The kinds of index that this store really builds, of ``decide.indexing.KINDS``."""

    def rebuild(self, plan: IndexPlan) -> None:
        """Build an index of another kind beside the one at work and switch over; searches never fail meanwhile."""

    def standing(self) -> Standing | None:
        """The index at work; None where there is no collection yet."""

    def close(self) -> None:
        """Let go of connections."""


def row_key(tenant: str, document: str, chunk: str) -> str:
    """The key of a chunk in every store. Lengths stand before the names, so that no two triples read the same."""
    text = f"{len(tenant)}:{tenant}{len(document)}:{document}{chunk}"
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:40]


def collection_name(name: str) -> str:
    """The name, if it is one that all stores take."""
    if not _COLLECTION.fullmatch(name):
        raise BadInput(f"{name!r} is no name for a collection: expected letters, digits and '_', at most 48")
    return name


def check_rows(rows: Sequence[Row], collection: str, space: Space | None) -> None:
    """BadInput for what no store could keep: names that are too long, vectors of another dimension."""
    for row in rows:
        for name in (row.document, row.chunk, row.tenant):
            if len(name.encode(errors="replace")) > NAME_BYTES:
                raise BadInput(f"{name[:40]!r}… is too long for a name: at most {NAME_BYTES} bytes")
        if space is not None:
            check_dimension(len(row.vector), collection, space)


def check_dimension(dimension: int, collection: str, have: Space) -> None:
    """BadInput for a vector that the collection's cannot be compared with."""
    if dimension != have.dimension:
        raise BadInput(
            f"a vector of {dimension} dimensions does not fit collection {collection!r}, which has {have.dimension}",
            problems=[Problem("vector", f"expected {have.dimension} dimensions, got {dimension}")],
        )


def check_space(asked: Space, collection: str, have: Space) -> None:
    """BadInput where ``asked`` are other vectors than the collection's. A model that nobody named fits every model."""
    check_dimension(asked.dimension, collection, have)
    if asked.metric != have.metric:
        raise BadInput(
            f"collection {collection!r} compares by {have.metric}, not by {asked.metric}",
            problems=[Problem("metric", f"expected {have.metric}, got {asked.metric}")],
        )
    if asked.model and have.model and asked.model != have.model:
        raise BadInput(
            f"collection {collection!r} holds vectors of model {have.model!r}, and these are of {asked.model!r}",
            problems=[Problem("model", f"expected {have.model!r}, got {asked.model!r}")],
        )


def cut(text: str) -> str:
    """The text as far as it is kept."""
    return text.encode(errors="replace")[:TEXT_BYTES].decode(errors="ignore")
