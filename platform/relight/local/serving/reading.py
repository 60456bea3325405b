"""Reading requests from a client's connection, one after the other, as far as there is somewhere to put them.

The parser (llhttp through httptools, strict mode) refuses what request smuggling is made of: Content-Length beside
Transfer-Encoding, two Content-Lengths, folded or malformed header lines, bare line feeds, unknown transfer codings.
What it lets pass and is still refused: see ``aiming``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

import httptools

from relight.local.serving.aiming import aim, offers_only_h2c
from relight.local.serving.context import Context
from relight.local.serving.exchange import Exchange
from relight.local.serving.http1 import CONTINUE, REQUEST_NOTED
from relight.local.serving.refusals import Refusal

if TYPE_CHECKING:
    from relight.local.serving.downstream import ClientConnection


class Reading:
    """See the module. ``ClientConnection`` adds when the connection ends, and what is answered on it."""

    def __init__(self, context: Context) -> None:
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

    # -- what the connection says

    def write(self, data: bytes) -> None:
        raise NotImplementedError

    def set_deadline(self, at: float) -> None:
        raise NotImplementedError

    def _refuse_connection(self, refusal: Refusal) -> None:
        """What came cannot be read as a request."""
        raise NotImplementedError

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
            cast("ClientConnection", self),
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
