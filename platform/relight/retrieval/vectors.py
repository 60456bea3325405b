"""The seam to vector stores: what index and retrieve need of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Row:
    """One chunk of a document with its vector. (document, chunk) identifies it: writing it again replaces it."""

    document: str
    chunk: str
    text: str
    vector: Sequence[float]
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hit:
    """One answer to a search. ``score`` is the cosine of the angle to the query: 1 is the same direction."""

    document: str
    chunk: str
    text: str
    score: float
    metadata: Mapping[str, Any] = field(default_factory=dict)


class VectorStore(Protocol):
    """A collection of chunks. What is written is found by the next search, whoever asks.

    NotReady where the store does not answer (a retry may help), BadInput for a vector of the wrong dimension.
    """

    def ensure(self, dimension: int) -> None:
        """Make the collection if it is not there; BadInput if it is, with another dimension."""

    def upsert(self, rows: Sequence[Row]) -> int:
        """Write rows; the number written."""

    def search(self, vector: Sequence[float], k: int, where: Mapping[str, Scalar] | None = None) -> list[Hit]:
        """The nearest ``k``, best first; empty where there is no collection yet.

        ``where``: equality on ``document`` or on a field of the metadata, all of them.
        """

    def delete(self, document: str, keep: Sequence[str] = ()) -> None:
        """Remove a document's chunks, but for those named."""

    def count(self) -> int:
        """How many chunks there are."""

    def close(self) -> None:
        """Let go of connections."""
