"""What a connection may cost, in bytes and seconds."""

from __future__ import annotations

from dataclasses import dataclass

from relight.runtime.context import MAX_BODY


@dataclass(frozen=True)
class Limits:
    """Times in seconds. The timeouts are checked once a second, so they hold to a second."""

    head: int = 64 * 2**10
    """Bytes of a request's line and headers; tracing and tokens together stay well below."""
    body: int = MAX_BODY
    pipelined: int = 16
    """Requests of one connection that may wait behind the one that is worked on; then reading stops."""
    pipelined_bytes: int = 2**20
    """Bytes of such requests' bodies together; then reading stops."""
    head_timeout: float = 10.0
    """From a connection's or a request's first byte to the end of its headers."""
    body_timeout: float = 60.0
    """Between two pieces of a body."""
    idle_timeout: float = 120.0
    """Without any request; longer than the proxies in front keep theirs, so that they close first."""
    write_timeout: float = 60.0
    """For a client that stops reading its answer."""
