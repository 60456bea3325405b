"""Clients' connections: parse requests, keep them in order, decide when the connection ends.

The parser (llhttp through httptools, strict mode) refuses what request smuggling is made of: Content-Length beside
Transfer-Encoding, two Content-Lengths, folded or malformed header lines, bare line feeds, unknown transfer codings.
What it lets pass and is still refused: see ``aiming``.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import deque
from typing import cast

import httptools

from relight.local.serving import h2client
from relight.local.serving.aiming import aim, offers_only_h2c
from relight.local.serving.context import Context
from relight.local.serving.exchange import Exchange
from relight.local.serving.heads import Teller
from relight.local.serving.http1 import CONTINUE, REQUEST_NOTED
from relight.local.serving.refusals import Refusal
from relight.local.serving.upstream import hung_up

log = logging.getLogger("relight.router")

FOREVER = float("inf")
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""``struct linger``: on, 0 s."""


class ClientConnection(asyncio.Protocol):
    """One connection of a client, with the request that is being answered and those that were sent ahead of it."""

    def __init__(self, context: Context) -> None:
        self.deadline = FOREVER
        self.teller = Teller(b"unknown")
        self._last_chance = FOREVER
        self._opening: bytes | None = b""
        """The first bytes, until they tell HTTP/1.1 from HTTP/2."""
        self._context = context
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._current: Exchange | None = None
        self._queue: deque[Exchange] = deque()
        self._incoming: Exchange | None = None
        self._in_head = False
        self._head_bytes = 0
        self._head_size = 0
        self._url = b""
        self._lines: list[bytes] = []
        self._noted: dict[bytes, bytes] = {}
        self._muted = False
        self._reframe = False
        self._tunnel_asked = False
        self._raw: list[bytes] = []
        self._raw_bytes = 0
        self._ended = False
        self._lingering = False
        self._reading = True
        self._upload_blocked = False
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

    def exchange_done(self, exchange: Exchange) -> None:
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

    # -- reading

    def _feed(self, data: bytes) -> None:
        parser = self._parser
        assert parser is not None
        self._head_bytes += len(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if not self._ended:
                self._after_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            if not self._ended:
                self._refuse_connection(Refusal(400, "bad_request", f"this is not an HTTP/1.1 request: {error}"))
            return
        if self._in_head and self._head_bytes > self._context.settings.head_bytes and not self._ended:
            self._refuse_connection(self._head_too_large())
            return
        current = self._current
        if current is not None and not current.dispatched and current.may_start:
            current.dispatch()
        if self._queue:
            self._update_reading()

    def _head_too_large(self) -> Refusal:
        limit = self._context.settings.head_bytes
        return Refusal(431, "head_too_large", f"the request's head is larger than {limit} bytes")

    def _update_reading(self) -> None:
        """Read while there is somewhere to put what comes; a lingering connection drops what it reads."""
        reading = self._lingering or not (
            self._upload_blocked or (self._queue and self._current is not None) or self._raw_bytes > 0
        )
        if reading != self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _keep_raw(self, data: bytes) -> None:
        """Bytes behind a request whose answer decides what they are."""
        if data:
            self._raw.append(data)
            self._raw_bytes += len(data)
            self._update_reading()

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

    def _after_upgrade(self, rest: bytes) -> None:
        """The parser stops behind the head of a request with Upgrade."""
        if self._tunnel_asked:
            self._parser = None
            self._keep_raw(rest)
        else:
            self._go_on_parsing(rest)

    def _go_on_parsing(self, rest: bytes) -> None:
        """An upgrade that is not passed on (h2c, which some clients offer with every request) is an ordinary request.

        A new parser takes the body, led in by a head that says the same of its length.
        """
        reframe, self._reframe = self._reframe, False
        exchange = self._incoming
        self._parser = parser = httptools.HttpRequestParser(self)
        if reframe and exchange is not None:
            framing = (
                b"transfer-encoding: chunked"
                if exchange.chunked
                else b"content-length: %d" % (exchange.content_length or 0)
            )
            self._muted = True
            parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
            self._muted = False
        self._head_bytes = 0
        self._feed(rest)

    # -- httptools

    def on_message_begin(self) -> None:
        if self._muted or self._ended:
            return
        self._in_head = True
        self._url = b""
        self._lines = []
        self._noted = {}
        self._head_size = 0
        if self._current is None:
            self.set_deadline(self._context.clock() + self._context.settings.head_timeout)

    def on_url(self, url: bytes) -> None:
        if not self._muted:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head or self._muted:
            # A trailer: dropped, as RFC 9110 (6.5.1) allows.
            return
        self._head_size += len(name) + len(value) + 4
        lowered = name.lower()
        if lowered not in REQUEST_NOTED:
            self._lines.append(b"%b: %b\r\n" % (name, value))
        elif lowered in self._noted:
            self._noted[lowered] += b", " + value
        else:
            self._noted[lowered] = value

    def on_headers_complete(self) -> None:
        if self._muted or self._ended:
            return
        parser, context, noted = self._parser, self._context, self._noted
        assert parser is not None
        self._in_head = False
        exchange = Exchange(
            context,
            self,
            parser.get_method(),
            parser.get_http_version(),
            parser.should_keep_alive(),
            context.clock(),
        )
        exchange.lines = self._lines
        exchange.noted = noted
        self._incoming = exchange
        if self._current is None:
            self._current = exchange
        else:
            self._queue.append(exchange)
        length = noted.get(b"content-length")
        coding = noted.get(b"transfer-encoding")
        if length is not None:
            exchange.content_length = int(length)
            exchange.streaming = exchange.content_length > context.settings.body_bytes
        elif coding is not None:
            exchange.chunked = exchange.streaming = True
        if parser.should_upgrade():
            self._tunnel_asked = exchange.upgrade = not offers_only_h2c(exchange)
            self._reframe = not exchange.upgrade and (exchange.chunked or bool(exchange.content_length))
        if self._head_size + len(self._url) > context.settings.head_bytes:
            exchange.error = self._head_too_large()
            exchange.keep_alive = False
        else:
            aim(context, exchange, self._url)
        if not exchange.dispatched and exchange is self._current:
            self.set_deadline(exchange.deadline)
            if exchange.asks_for_body:
                self.write(CONTINUE)

    def on_body(self, body: bytes) -> None:
        if self._incoming is not None:
            self._incoming.body_received(body)

    def on_message_complete(self) -> None:
        exchange = self._incoming
        if exchange is None or self._muted or self._reframe:
            return
        self._incoming = None
        self._head_bytes = 0
        exchange.body_complete()
        if exchange is self._current and not exchange.dispatched:
            exchange.dispatch()
