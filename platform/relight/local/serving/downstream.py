"""Clients' connections: keep requests in order, and decide when the connection ends. ``reading`` parses them."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from typing import cast

from relight.local.serving import h2client
from relight.local.serving.answering import Answering
from relight.local.serving.context import Context
from relight.local.serving.exchange import Exchange
from relight.local.serving.heads import Teller
from relight.local.serving.reading import Reading
from relight.local.serving.refusals import Refusal
from relight.local.serving.upstream import hung_up

log = logging.getLogger("relight.router")

FOREVER = float("inf")
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""``struct linger``: on, 0 s."""


class ClientConnection(Reading, asyncio.Protocol):
    """One connection of a client, with the request that is being answered and those that were sent ahead of it."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.deadline = FOREVER
        self.teller = Teller(b"unknown")
        self._last_chance = FOREVER
        self._opening: bytes | None = b""
        """The first bytes, until they tell HTTP/1.1 from HTTP/2."""
        self._pumping = False

    # -- used by the exchange

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._ended:
            self._transport.write(data)

    def set_deadline(self, at: float) -> None:
        self.deadline = at
        if at < self._context.deadlines.next_look:
            self._context.deadlines.arm(at)

    def block_upload(self, blocked: bool) -> None:
        """The current request's body has nowhere to go for now; or has."""
        if blocked != self._upload_blocked:
            self._upload_blocked = blocked
            self._update_reading()

    def gone(self) -> bool:
        """Whether the client hung up while its connection was not being read."""
        return self._ended or self._transport is None or (not self._reading and hung_up(self._transport))

    def vanish(self) -> None:
        """Close without another byte: nobody is there."""
        self._ended = True
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close once everything written is with the client."""
        self._begin_end()
        if self._transport is not None:
            self._transport.close()

    def _begin_end(self) -> None:
        self._ended = True
        now, settings = self._context.clock(), self._context.settings
        self._last_chance = now + settings.keep_alive
        self.set_deadline(now + settings.linger)

    def cut(self, last: bytes, why: str, framed: bool) -> None:
        """End inside an answer, after a ``last`` word. One without framing ends by a reset, or it would look whole."""
        log.warning(
            "answer.cut client=%s: %s; the connection was closed inside the answer", self.teller.peer.decode(), why
        )
        if framed:
            self.write(last)
            self.close()
            return
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.vanish()

    def exchange_done(self, exchange: Answering) -> None:
        """The current request has been answered: on to the next, or end the connection."""
        if self._ended or exchange is not self._current:
            return
        self._current = None
        self._upload_blocked = False
        if not exchange.keep_alive:
            self._end_after_answer(exchange.complete)
        elif exchange.upgrade:
            self.close()
        elif self._queue or self._raw:
            self._pump()
        else:
            self._idle()

    def tunnel_opened(self) -> None:
        """What the client sent right behind its upgrade request goes first."""
        raw, self._raw = self._raw, []
        self._raw_bytes = 0
        self._update_reading()
        if raw and self._current is not None:
            self._current.tunnel_up(b"".join(raw))

    # -- ends

    def stop(self) -> None:
        """The router stops: close at once when idle, else after the answer."""
        if self._current is None and not self._queue and self._incoming is None and not self._ended:
            self.close()

    def vanish_now(self) -> None:
        """The router has no more patience."""
        current, self._current = self._current, None
        if current is not None:
            current.abandon()
        self.vanish()

    @property
    def busy(self) -> bool:
        return self._current is not None or bool(self._queue)

    def buffered(self) -> int:
        """Bytes kept for this client, both ways."""
        ahead = sum(exchange.buffered for exchange in self._queue)
        mine = self._current.buffered if self._current is not None else 0
        out = self._transport.get_write_buffer_size() if self._transport is not None and not self._ended else 0
        return ahead + mine + self._raw_bytes + out

    def on_deadline(self, now: float) -> None:
        self.deadline = FOREVER
        if self._ended:
            transport = self._transport
            if transport is None:
                return
            if transport.get_write_buffer_size() and now < self._last_chance:
                # A slow reader still has the end of its answer to come.
                self.set_deadline(now + self._context.settings.linger)
            else:
                transport.abort()
        elif self._current is not None:
            self._current.expired(now)
        elif self._in_head:
            limit = self._context.settings.head_timeout
            self._refuse_connection(
                Refusal(408, "request_timeout", f"the request's head was not whole after {limit:g} s")
            )
        else:
            self.close()

    def _idle(self) -> None:
        self._update_reading()
        if self._context.draining:
            self.close()
        elif not self._in_head:
            self.set_deadline(self._context.clock() + self._context.settings.keep_alive)

    def _end_after_answer(self, all_read: bool) -> None:
        """The last answer is out. A client that still sends is read for a while, or it might never see the answer."""
        transport = self._transport
        if transport is None:
            return
        if all_read and not self._queue and not self._raw:
            self.close()
            return
        self._begin_end()
        self._lingering = True
        self._queue.clear()
        self._update_reading()
        if transport.can_write_eof() and not transport.is_closing():
            transport.write_eof()

    def _refuse_connection(self, refusal: Refusal) -> None:
        """What came cannot be read as a request: say why, after the answers that are due, and close."""
        if self._ended:
            return
        self._incoming = None
        self._in_head = False
        self._parser = None
        exchange = Exchange(self._context, self, b"GET", "1.1", False, self._context.clock())
        exchange.error = refusal
        exchange.last = True
        current = self._current
        if current is not None and not current.complete:
            # The very request that is being passed on turned out malformed: its replica must not act on a part of it.
            current.fail(refusal)
            return
        if current is None and not self._queue:
            self._current = exchange
            exchange.dispatch()
        else:
            self._queue.append(exchange)

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports derive from none of asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if peer:
            self.teller = Teller(str(peer[0]).encode())
        self._context.connections.add(self)
        self._context.deadlines.watched.add(self)
        self.set_deadline(self._context.clock() + self._context.settings.keep_alive)

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        if self._opening is not None:
            data = self._opening + data
            if len(data) < len(h2client.SIGN) and h2client.SIGN.startswith(data):
                self._opening = data
                return
            self._opening = None
            if data.startswith(h2client.SIGN):
                self._hand_over(data)
                return
        current = self._current
        if current is not None and current.tunnel:
            current.tunnel_up(data)
            return
        if self._parser is None:
            self._keep_raw(data)
            return
        self._feed(data)

    def _hand_over(self, data: bytes) -> None:
        """The client speaks HTTP/2 with prior knowledge: another kind of connection takes over."""
        transport, self._transport = self._transport, None
        assert transport is not None
        self._ended = True
        connection = h2client.H2ClientConnection(self._context)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        self._context.connections.discard(self)
        self._context.deadlines.watched.discard(self)
        connection.data_received(data)

    def eof_received(self) -> bool:
        # A client that closes its side has gone, as for Go's server and nginx.
        self._hang_up()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._hang_up()
        self._ended = True
        self._transport = None
        self._context.connections.discard(self)
        self._context.deadlines.watched.discard(self)
        if self._context.all_closed is not None and not self._context.connections:
            self._context.all_closed.set()

    def pause_writing(self) -> None:
        if self._current is not None:
            self._current.download_blocked(True)

    def resume_writing(self) -> None:
        if self._current is not None:
            self._current.download_blocked(False)

    def _hang_up(self) -> None:
        self._ended = True
        self._queue.clear()
        self._incoming = None
        current, self._current = self._current, None
        if current is not None:
            current.abandon()

    # -- what was sent ahead

    def _pump(self) -> None:
        """Start what was sent ahead, one after the other; not re-entered, for an answer may be there at once."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._current is None and self._queue and not self._ended:
                self._current = self._queue.popleft()
                self._start(self._current)
        finally:
            self._pumping = False
        if not self._ended:
            if self._current is None:
                self._idle()
            else:
                self._update_reading()

    def _start(self, exchange: Exchange) -> None:
        if exchange.complete or exchange.may_start:
            exchange.dispatch()
        else:
            self.set_deadline(exchange.deadline)
