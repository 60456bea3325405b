"""What travels between split, embed and index: documents and their chunks, as the event catalogue has them.

``document`` identifies a document: sent again, it replaces what was indexed of it. ``title`` and ``metadata`` go
through the chain unchanged, as does ``tenant``, whose documents nobody else's questions find.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relight.base.errors import BadInput, Problem
from relight.retrieval.extracting import FORMATS

NAME_BYTES = 1024
"""Of a document's or chunk's name: what the vector store keeps of it."""


@dataclass(frozen=True)
class Document:
    """Data of ``dev.relight.document.v1``. ``text``: of a PDF, its bytes in base64."""

    document: str
    text: str
    title: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tenant: str | None = None
    format: str = "text"

    @classmethod
    def parse(cls, data: Any) -> Document:
        """Read and check; BadInput names every mistake."""
        problems: list[Problem] = []
        fields = _head(data, problems)
        text = fields.get("text")
        if not isinstance(text, str):
            problems.append(Problem("text", "expected a string"))
        kind = fields.get("format", "text")
        if kind not in FORMATS:
            problems.append(Problem("format", f"expected {', '.join(FORMATS)}"))
        if problems:
            raise BadInput.of(problems)
        metadata = fields.get("metadata") or {}
        return cls(fields["document"], str(text), fields.get("title"), metadata, fields.get("tenant"), kind)

    def head(self) -> dict[str, Any]:
        """What every message about the document carries."""
        return _carried(self.document, self.title, self.metadata, self.tenant)


@dataclass(frozen=True)
class Piece:
    """One chunk of a message. ``vector`` None: not embedded yet."""

    id: str
    text: str
    start: int | None
    end: int | None
    vector: Sequence[float] | None = None
    heading: str | None = None
    """The headings above it, the outermost first, with `` > `` between."""
    page: int | None = None

    def fields(self) -> dict[str, Any]:
        """As JSON has it; what is not known is left out."""
        values: dict[str, Any] = {
            "id": self.id,
            "start": self.start,
            "end": self.end,
            "heading": self.heading,
            "page": self.page,
            "text": self.text,
            "vector": self.vector,
        }
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Pieces:
    """Data of ``dev.relight.chunks.v1`` and, with vectors, of ``dev.relight.embedded.v1``."""

    document: str
    chunks: tuple[Piece, ...]
    title: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tenant: str | None = None
    model: str | None = None
    """That made the vectors."""

    @classmethod
    def parse(cls, data: Any, *, vectors: bool) -> Pieces:
        """Read and check; BadInput names every mistake. ``vectors``: each chunk must have one, all of one length."""
        problems: list[Problem] = []
        fields = _head(data, problems)
        chunks = fields.get("chunks")
        if not isinstance(chunks, list):
            problems.append(Problem("chunks", "expected an array"))
            chunks = []
        pieces = [_piece(chunk, f"chunks[{at}]", vectors, problems) for at, chunk in enumerate(chunks)]
        lengths = {len(piece.vector) for piece in pieces if piece.vector is not None}
        if len(lengths) > 1:
            found = " and ".join(map(str, sorted(lengths)))
            problems.append(Problem("chunks", f"expected vectors of one length, got {found}"))
        if len({piece.id for piece in pieces}) < len(pieces) and not problems:
            problems.append(Problem("chunks", "expected ids that are unique within the document"))
        if not isinstance(fields.get("model"), str | None):
            problems.append(Problem("model", "expected a string"))
        if problems:
            raise BadInput.of(problems)
        metadata = fields.get("metadata") or {}
        return cls(
            fields["document"], tuple(pieces), fields.get("title"), metadata, fields.get("tenant"), fields.get("model")
        )

    def head(self) -> dict[str, Any]:
        """What every message about the document carries."""
        return _carried(self.document, self.title, self.metadata, self.tenant)


def _carried(document: str, title: str | None, metadata: Mapping[str, Any], tenant: str | None) -> dict[str, Any]:
    head: dict[str, Any] = {"document": document}
    if title is not None:
        head["title"] = title
    if metadata:
        head["metadata"] = dict(metadata)
    if tenant is not None:
        head["tenant"] = tenant
    return head


def _head(data: Any, problems: list[Problem]) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise BadInput(f"expected a JSON object, got {'nothing' if data is None else type(data).__name__}")
    _name(data.get("document"), "document", problems)
    if data.get("tenant") is not None:
        _name(data.get("tenant"), "tenant", problems)
    if not isinstance(data.get("title"), str | None):
        problems.append(Problem("title", "expected a string"))
    if not isinstance(data.get("metadata"), Mapping | None):
        problems.append(Problem("metadata", "expected an object"))
    return data


def _name(value: Any, path: str, problems: list[Problem]) -> None:
    if not isinstance(value, str) or not value:
        problems.append(Problem(path, "expected a non-empty string"))
    elif len(value.encode(errors="replace")) > NAME_BYTES:
        problems.append(Problem(path, f"expected at most {NAME_BYTES} bytes"))


def _piece(chunk: Any, path: str, vectors: bool, problems: list[Problem]) -> Piece:
    if not isinstance(chunk, Mapping):
        problems.append(Problem(path, "expected an object"))
        return Piece("", "", None, None)
    _name(chunk.get("id"), f"{path}.id", problems)
    if not isinstance(chunk.get("text"), str):
        problems.append(Problem(f"{path}.text", "expected a string"))
    start, end, page = (_offset(chunk.get(name), f"{path}.{name}", problems) for name in ("start", "end", "page"))
    if not isinstance(chunk.get("heading"), str | None):
        problems.append(Problem(f"{path}.heading", "expected a string"))
    vector = chunk.get("vector") if vectors else None
    if vectors and not _is_vector(vector):
        problems.append(Problem(f"{path}.vector", "expected an array of numbers"))
        vector = None
    return Piece(str(chunk.get("id")), str(chunk.get("text")), start, end, vector, chunk.get("heading"), page)


def _offset(value: Any, path: str, problems: list[Problem]) -> int | None:
    if value is not None and (type(value) is not int or value < 0):
        problems.append(Problem(path, "expected a whole number from 0"))
        return None
    return value


def _is_vector(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(number) in (int, float) for number in value)
