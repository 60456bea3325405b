"""The head of the request that a replica gets."""

from __future__ import annotations

from collections.abc import Callable

from relight.local.serving.http1 import without
from relight.local.serving.routes import TAG_HEADER, Route

FORWARDED = frozenset((b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"))
PASSED = (b"origin", b"relight-timing", TAG_HEADER)
"""Fields that the router reads and passes on."""


class Teller:
    """What replicas are told of one client: the lines are the same for all its requests to one host."""

    __slots__ = ("_host", "_lines", "peer")

    def __init__(self, peer: bytes) -> None:
        self.peer = peer
        self._host: bytes | None = None
        self._lines = b""

    def lines(self, host: bytes, noted: dict[bytes, bytes]) -> bytes:
        """X-Forwarded-For, -Host and -Proto. A proxy in front of us knows the last two better than we do."""
        if FORWARDED.isdisjoint(noted):
            if host != self._host:
                self._host = host
                self._lines = self._write(self.peer, host, b"http")
            return self._lines
        return self._write(
            b", ".join(filter(None, (noted.get(b"x-forwarded-for"), self.peer))),
            noted.get(b"x-forwarded-host", host),
            noted.get(b"x-forwarded-proto", b"http"),
        )

    @staticmethod
    def _write(chain: bytes, host: bytes, scheme: bytes) -> bytes:
        return b"x-forwarded-for: %b\r\nx-forwarded-host: %b\r\nx-forwarded-proto: %b\r\n" % (chain, host, scheme)


def identify(noted: dict[bytes, bytes], random_bits: Callable[[int], int]) -> tuple[bytes, bytes]:
    """Request id and W3C trace parent: the caller's, or new ones that belong together."""
    request_id, trace = noted.get(b"x-request-id"), noted.get(b"traceparent")
    if request_id is None or trace is None:
        # Neither part of a trace parent may be zero (W3C Trace Context, 3.2.2).
        bits = random_bits(192) | 1 << 64 | 1
        request_id = request_id or b"%032x" % (bits >> 64)
        trace = trace or b"00-%032x-%016x-01" % (bits >> 64, bits & 0xFFFFFFFFFFFFFFFF)
    return request_id, trace


def request_head(
    method: bytes,
    target: bytes,
    route: Route,
    by_path: bool,
    lines: list[bytes],
    noted: dict[bytes, bytes],
    teller: Teller,
    ids: tuple[bytes, bytes],
) -> list[bytes]:
    """Everything but the body's framing, which is the exchange's to say, and the empty line."""
    host = noted.get(b"host", b"")
    parts = [method, b" ", target, b" HTTP/1.1\r\n"]
    parts.append(route.host_line if by_path else b"host: %b\r\n" % host)
    connection = noted.get(b"connection")
    parts += lines if connection is None else without(lines, connection)
    parts.append(teller.lines(host, noted))
    before = noted.get(b"x-forwarded-prefix")
    if before is not None:
        parts.append(b"x-forwarded-prefix: %b%b\r\n" % (before, route.prefix if by_path else b""))
    elif by_path:
        parts.append(route.prefix_line)
    parts += [b"%b: %b\r\n" % (name, noted[name]) for name in PASSED if name in noted]
    parts.append(b"x-request-id: %b\r\ntraceparent: %b\r\n" % ids)
    return parts
