"""The request that the author's code works on, for what it passes on: ids and tracing."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from relight.wire.cloudevents import Event
from relight.wire.http import TIMEOUT_HEADER, Headers, Request

TRACING = ("traceparent", "tracestate", "baggage")
"""Headers, and extensions of events, that tie the calls of one trace together (W3C Trace Context and Baggage)."""


@dataclass(frozen=True, slots=True)
class CurrentRequest:
    """What came in: its headers, and the event that it carries, if any."""

    headers: Headers
    event: Event | None = None

    @property
    def id(self) -> str | None:
        """``x-request-id``; None where the caller gave none."""
        return self.headers.get("x-request-id")

    def passed_on(self) -> dict[str, str]:
        """The headers for calls to others: the request's id, and its tracing. An event's own tracing goes first."""
        found = {name: self.headers.get(name) for name in ("x-request-id", *TRACING)}
        if self.event is not None:
            found |= {name: str(value) for name in TRACING if (value := self.event.get(name)) is not None}
        return {name: value for name, value in found.items() if value}

    @property
    def seconds_left(self) -> float | None:
        """What the caller has left of its time, as of when the request came; None where it did not say."""
        left = self.headers.get(TIMEOUT_HEADER)
        return int(left) / 1000 if left is not None and left.isascii() and left.isdecimal() else None


_current: ContextVar[CurrentRequest | None] = ContextVar("relight_current_request", default=None)


def current_request() -> CurrentRequest | None:
    """The request that this thread works on; None outside of ``run``, ``event_inputs`` and ``event_reply``.

    Threads that the author starts do not have it, unless they are started with a copy of the context.
    """
    return _current.get()


def headers_onward(event: Event | None = None) -> dict[str, str]:
    """Headers for a call of another function: the current request's id and tracing, or the event's, or an own id."""
    current = current_request()
    headers = {"x-request-id": str(uuid.uuid4())} | (current.passed_on() if current is not None else {})
    if event is not None:
        headers |= {name: str(value) for name in TRACING if (value := event.get(name)) is not None}
    return headers


@contextmanager
def working_on(request: Request, event: Event | None) -> Iterator[None]:
    """Make a request the current one of this thread."""
    token = _current.set(CurrentRequest(request.headers, event))
    try:
        yield
    finally:
        _current.reset(token)
