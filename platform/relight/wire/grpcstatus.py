"""gRPC's statuses: what an error of ours is called there, and what a status is worth among HTTP's classes."""

from __future__ import annotations

import math
from urllib.parse import quote

from relight.base.errors import Overloaded, RelightError

OK = 0
INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
NOT_FOUND = 5
RESOURCE_EXHAUSTED = 8
UNIMPLEMENTED = 12
INTERNAL = 13
UNAVAILABLE = 14

_BY_HTTP = {
    400: INVALID_ARGUMENT,
    401: 16,  # UNAUTHENTICATED
    403: 7,  # PERMISSION_DENIED
    404: NOT_FOUND,
    405: UNIMPLEMENTED,
    408: DEADLINE_EXCEEDED,
    409: 10,  # ABORTED
    413: RESOURCE_EXHAUSTED,
    415: INVALID_ARGUMENT,
    421: INVALID_ARGUMENT,
    422: INVALID_ARGUMENT,
    426: UNIMPLEMENTED,
    429: RESOURCE_EXHAUSTED,
    431: RESOURCE_EXHAUSTED,
    499: 1,  # CANCELLED
    501: UNIMPLEMENTED,
    502: UNAVAILABLE,
    503: UNAVAILABLE,
    504: DEADLINE_EXCEEDED,
    505: UNIMPLEMENTED,
    507: RESOURCE_EXHAUSTED,
}
_CALLERS_FAULT = frozenset({1, 3, 5, 6, 7, 9, 10, 11, 12, 16})


def of_http(status: int) -> int:
    """The gRPC status that says what an HTTP status of 400 and above says."""
    return _BY_HTTP.get(status, INTERNAL)


def of_error(error: RelightError) -> int:
    """The gRPC status of an error. A full queue is a resource exhausted, whatever status it has over HTTP."""
    return RESOURCE_EXHAUSTED if isinstance(error, Overloaded) else of_http(error.status)


def http_class(status: int) -> int:
    """The first digit of the HTTP status that a gRPC status comes nearest to, for metrics that count by it."""
    return 2 if status == OK else 4 if status in _CALLERS_FAULT else 5


def percent_encoded(message: str) -> str:
    """A message as the ``grpc-message`` field holds it (gRPC over HTTP/2: percent-encoded UTF-8)."""
    return quote(message, safe="".join(chr(code) for code in range(0x20, 0x7F) if code != 0x25))


def pushback(retry_after: float | None) -> tuple[tuple[str, str], ...]:
    """Trailers that tell a client that retries when to do so; none where nothing is known about when."""
    return () if retry_after is None else (("grpc-retry-pushback-ms", str(math.ceil(retry_after * 1000))),)
