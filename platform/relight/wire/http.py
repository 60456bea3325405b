"""HTTP as plain values: endpoints are functions of a ``Request`` that return a ``Response``, whatever the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    from relight.wire.v2 import Form

TIMEOUT_HEADER = "relight-timeout-ms"
"""What is left of a request's time when one function calls another: milliseconds from now, for clocks differ."""


class Headers:
    """An ordered multi-map of header fields. Names are compared in lower case; repeats are kept; immutable."""

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[tuple[str, str]] | Mapping[str, str] = ()) -> None:
        pairs = items.items() if isinstance(items, Mapping) else items
        self._items: tuple[tuple[str, str], ...] = tuple((name.lower(), value) for name, value in pairs)

    @classmethod
    def from_raw(cls, raw: Iterable[tuple[bytes, bytes]]) -> Headers:
        """From the bytes of the wire, read as Latin-1 (RFC 9110, 5.5)."""
        headers = cls()
        headers._items = tuple([(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in raw])
        return headers

    def get(self, name: str, default: str | None = None) -> str | None:
        """The first value of a field; ``name`` in lower case."""
        for key, value in self._items:
            if key == name:
                return value
        return default

    def getall(self, name: str) -> list[str]:
        return [value for key, value in self._items if key == name]

    def __contains__(self, name: object) -> bool:
        return any(key == name for key, _ in self._items)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Headers) and self._items == other._items

    def __hash__(self) -> int:
        return hash(self._items)

    def __repr__(self) -> str:
        return f"Headers({list(self._items)!r})"


def media_type(content_type: str | None) -> str:
    """The media type without parameters, in lower case; empty where there is none."""
    return (content_type or "").partition(";")[0].strip().lower()


@dataclass(frozen=True, slots=True)
class Request:
    """One request, its body whole. ``path`` is percent-decoded and without the query."""

    method: str
    path: str
    headers: Headers = field(default_factory=Headers)
    body: bytes = b""
    query: str = ""
    form: Form | None = None
    """How the request and its answer are written, where the host speaks another protocol than HTTP."""

    def parameters(self) -> dict[str, str]:
        """The query's parameters, the last of each name."""
        return dict(parse_qsl(self.query, keep_blank_values=True))


@dataclass(frozen=True, slots=True)
class Response:
    """One answer. ``headers`` names content-type where there is a body; hosts add content-length and connection."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def with_headers(self, *more: tuple[str, str]) -> Response:
        return Response(self.status, (*self.headers, *more), self.body)
