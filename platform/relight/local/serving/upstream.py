"""Connections to replicas: parse answers, hand their parts to the exchange, wait in a pool in between."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import httptools

from relight.local.serving.http1 import RESPONSE_NOTED
from relight.local.serving.types import Address

if TYPE_CHECKING:
    from relight.local.serving.exchange import Exchange

PEEK_AFTER = 0.05
"""Seconds. A pooled connection that was idle longer is looked at before it is used: its peer may have closed it in this
very turn of the loop, and a request sent into a closed connection cannot always be sent again."""


def hung_up(transport: asyncio.Transport) -> bool:
    """Whether the peer has closed its side, asked of the kernel (reading may be paused, or not have come to it yet)."""
    descriptor = transport.get_extra_info("socket")
    if descriptor is None or descriptor.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(descriptor.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


class UpstreamConnection(asyncio.Protocol):
    """One keep-alive connection to a replica. At most one exchange uses it at a time."""

    def __init__(self, address: Address, pools: Pools) -> None:
        self.address = address
        self.closed = False
        self.idle_since = 0.0
        self.write_paused = False
        """The replica does not take what was written; it is told to the exchange when that changes."""
        self._pools = pools
        self._exchange: Exchange | None = None
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._lines: list[bytes] = []
        self._noted: dict[bytes, bytes] = {}
        self._interim = False
        self._head_only = False
        self._done = False
        self._surplus = False
        self._tunnel = False

    # -- used by the exchange

    def attach(self, exchange: Exchange, head_only: bool) -> None:
        """The next answer on this connection is the exchange's; ``head_only``: it will have no body (HEAD)."""
        self._exchange = exchange
        self._head_only = head_only
        self._done = False
        self._surplus = False
        self._tunnel = False
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self.closed:
            self._transport.write(data)

    def pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def buffered(self) -> int:
        return 0 if self._transport is None or self.closed else self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """Cancel what the replica does for us, in the only way HTTP/1.1 has. Idempotent."""
        self._exchange = None
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def let_go(self, reusable: bool) -> None:
        """The exchange has its answer: back to the pool, or close."""
        self._exchange = None
        if reusable and not self._surplus and not self.closed:
            self._pools.put(self)
        else:
            self.abort()

    def usable(self, now: float) -> bool:
        """Whether a request may be sent on this connection after a time in the pool."""
        if self.closed or self._transport is None or self._transport.is_closing():
            return False
        return now - self.idle_since < PEEK_AFTER or not hung_up(self._transport)

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports derive from none of asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            # Bytes that nobody asked for: whatever came next on this connection could not be trusted.
            self.abort()
            return
        if self._tunnel:
            exchange.tunnel_down(data)
            return
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgraded(exchange, data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            if not self._done:
                exchange.upstream_failed(f"its answer is not HTTP: {error}")
                return
            self._surplus = True
        if self._exchange is exchange:
            exchange.flush(self._done)

    def eof_received(self) -> None:
        exchange = self._exchange
        if exchange is not None:
            exchange.upstream_ended(clean=True)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._pools.forget(self)
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.upstream_ended(clean=error is None)

    def pause_writing(self) -> None:
        self.write_paused = True
        if self._exchange is not None:
            self._exchange.upload_blocked(True)

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._exchange is not None:
            self._exchange.upload_blocked(False)

    # -- httptools

    def on_message_begin(self) -> None:
        if self._done:
            self._surplus = True
        self._lines = []
        self._noted = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        lowered = name.lower()
        if lowered not in RESPONSE_NOTED:
            self._lines.append(b"%b: %b\r\n" % (name, value))
        elif lowered in self._noted:
            self._noted[lowered] += b", " + value
        else:
            self._noted[lowered] = value

    def on_headers_complete(self) -> None:
        parser, exchange = self._parser, self._exchange
        if self._done or exchange is None or parser is None:
            return
        status = parser.get_status_code()
        self._interim = 100 <= status < 200 and status != 101
        if self._interim:
            # 100 was already said to whoever asked for it, 103 is a hint: neither is forwarded.
            return
        exchange.response_head(status, self._lines, self._noted, parser.should_keep_alive())
        if self._head_only and status != 101:
            # The parser does not know of HEAD and would wait for the body that Content-Length speaks of.
            self._done = True
            self._parser = None

    def on_body(self, body: bytes) -> None:
        if self._done:
            self._surplus = True
        elif self._exchange is not None:
            self._exchange.response_body(body)

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        elif not self._surplus:
            self._done = True

    def _upgraded(self, exchange: Exchange, rest: bytes) -> None:
        self._tunnel = True
        if exchange.tunnel_open() and rest:
            exchange.tunnel_down(rest)


class Pools:
    """Idle connections by replica address, most recently used first. Watched by ``Deadlines``, to close old ones."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.deadline = float("inf")
        self._clock = clock
        self._longest = 0.0
        self._idle: dict[Address, list[UpstreamConnection]] = {}

    def start(self, longest: float) -> None:
        """Close connections that were idle for ``longest`` seconds."""
        self._longest = longest

    def on_deadline(self, now: float) -> None:
        self._expire(now - self._longest)

    def take(self, address: Address) -> UpstreamConnection | None:
        """A connection that is open as far as can be known; None: open a new one."""
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            if connection.usable(self._clock()):
                return connection
            connection.abort()
        return None

    def put(self, connection: UpstreamConnection) -> None:
        connection.idle_since = now = self._clock()
        if self.deadline == float("inf"):
            self.deadline = now + self._longest
        self._idle.setdefault(connection.address, []).append(connection)

    def drop(self, address: Address) -> None:
        """A replica closed a connection without an answer: what is kept of it is as doubtful."""
        for connection in self._idle.pop(address, []):
            connection.abort()

    def forget(self, connection: UpstreamConnection) -> None:
        """It was lost while it may have been idle here."""
        idle = self._idle.get(connection.address)
        if idle is not None and connection in idle:
            idle.remove(connection)
            if not idle:
                del self._idle[connection.address]

    def _expire(self, before: float) -> None:
        kept: dict[Address, list[UpstreamConnection]] = {}
        for address, idle in list(self._idle.items()):
            # Aborting one only tells `forget` later, which then finds it gone from here.
            young = [connection for connection in idle if connection.idle_since > before]
            for connection in set(idle) - set(young):
                connection.abort()
            if young:
                kept[address] = young
        self._idle = kept
        oldest = min((connection.idle_since for idle in kept.values() for connection in idle), default=None)
        self.deadline = float("inf") if oldest is None else oldest + self._longest

    def close(self) -> None:
        self._expire(float("inf"))

    def __len__(self) -> int:
        return sum(map(len, self._idle.values()))
