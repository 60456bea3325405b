"""HTTP as plain values: endpoints are functions of a ``Request`` that return a ``Response``, whatever the host.

They are structs, not dataclasses: every request makes several, and a frozen dataclass takes five times as long to make.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import msgspec

if TYPE_CHECKING:
    from relight.wire.v2 import Form

TIMEOUT_HEADER = "relight-timeout-ms"
"""What is left of a request's time when one function calls another: milliseconds from now, for clocks differ."""


class Headers:
    """An ordered multi-map of header fields. Names are compared in lower case; repeats are kept; immutable."""

    __slots__ = ("_first", "_items")

    def __init__(self, items: Iterable[tuple[str, str]] | Mapping[str, str] = ()) -> None:
        pairs = items.items() if isinstance(items, Mapping) else items
        self._items: tuple[tuple[str, str], ...] = tuple((name.lower(), value) for name, value in pairs)
        self._first: dict[str, str] | None = None

    @classmethod
    def from_raw(cls, raw: Iterable[tuple[bytes, bytes]]) -> Headers:
        """From the bytes of the wire, read as Latin-1 (RFC 9110, 5.5)."""
        headers = cls()
        headers._items = tuple([(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in raw])
        return headers

    def get(self, name: str, default: str | None = None) -> str | None:
        """The first value of a field; ``name`` in lower case."""
        first = self._first
        if first is None:
            first = self._first = dict(reversed(self._items))
        return first.get(name, default)

    def getall(self, name: str) -> list[str]:
        return [value for key, value in self._items if key == name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

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


NO_HEADERS = Headers()


def media_type(content_type: str | None) -> str:
    """The media type without parameters, in lower case; empty where there is none."""
    return (content_type or "").partition(";")[0].strip().lower()


class Request(msgspec.Struct, frozen=True):
    """One request, its body whole. ``path`` is percent-decoded and without the query."""

    method: str
    path: str
    headers: Headers = NO_HEADERS
    body: bytes = b""
    query: str = ""
    form: Form | None = None
    """How the request and its answer are written, where the host speaks another protocol than HTTP."""

    def parameters(self) -> dict[str, str]:
        """The query's parameters, the last of each name."""
        return dict(parse_qsl(self.query, keep_blank_values=True))


class Response(msgspec.Struct, frozen=True):
    """One answer. ``headers`` names content-type where there is a body; hosts add content-length and connection."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def with_headers(self, *more: tuple[str, str]) -> Response:
        return Response(self.status, (*self.headers, *more), self.body)
