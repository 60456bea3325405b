"""HTTP/1.1 on an asyncio transport: the face that gunicorn's workers and local mode's replicas show.

One request of a connection is worked on at a time, in order; those that were sent behind it wait, a bounded number. A
client that hangs up takes its request with it: what has not begun is not run.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import Future
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import httptools

from relight.base.errors import BadInput, RelightError, TooLarge
from relight.runtime.hosts.wire import CONTINUE, Head, check_head, render, split_target
from relight.runtime.pending import Pending
from relight.wire import v2
from relight.wire.http import Headers, Request, Response

if TYPE_CHECKING:
    from relight.runtime.hosts.server import Server

log = logging.getLogger("relight.protocol")

LINGER = 2.0
"""Seconds of reading on after a refusal."""
CHUNK_OVERHEAD = 32
"""Bytes around a chunk that are nothing to wonder at: its size, line ends, a short extension."""
_JSON = (("content-type", v2.JSON),)
_BAD_HEADER = Response(500, _JSON, v2.dump({"error": "the function made a header that HTTP does not allow"}))


class HeadTooLarge(BadInput):
    """The line and headers of a request are over the limit."""

    code = "headers_too_large"
    status = 431


class ExpectationFailed(BadInput):
    """The request expects what HTTP has no name for."""

    code = "expectation_failed"
    status = 417


class Reading(Enum):
    """What the next bytes of a connection belong to."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    OVER = "over"


class _Received:
    """A request whose bytes are all there."""

    __slots__ = ("http10", "keep_alive", "request")

    def __init__(self, request: Request, keep_alive: bool, http10: bool) -> None:
        self.request = request
        self.keep_alive = keep_alive
        self.http10 = http10


class _Said(NamedTuple):
    """The last head of a connection, checked and read: a client mostly says the same again."""

    version: str
    raw: list[tuple[bytes, bytes]]
    head: Head
    headers: Headers


class HttpProtocol(asyncio.Protocol):
    """One connection of a ``Server``."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._limits = server.limits
        self._loop = server.loop
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self.reading = Reading.IDLE
        self.since = self._loop.time()
        """When what is awaited began to be awaited; the server's sweep compares it with the limits."""
        self.write_blocked = False
        self._waiting: deque[_Received] = deque()
        self._current: _Received | None = None
        self._pending: Pending | None = None
        self._refusal: Response | None = None
        self._raw_body = 0
        self._held = False
        self._served = False
        self._dispatching = False
        self._said: _Said | None = None
        self._begin()

    def _begin(self) -> None:
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._path = self._query = ""
        self._head_size = 0
        self._body_size = 0
        self._chunks = 0
        self._overhead = 0

    @property
    def busy(self) -> bool:
        """Whether a request is being worked on or waits."""
        return self._current is not None or bool(self._waiting)

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.reading = Reading.OVER
        self._waiting.clear()
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.abandon()
        self._current = None
        self._server.closed(self)

    def pause_writing(self) -> None:
        self.write_blocked = True
        self.since = self._loop.time()

    def resume_writing(self) -> None:
        self.write_blocked = False
        self._next()

    def data_received(self, data: bytes) -> None:
        if self.reading is Reading.OVER:
            return
        if self.reading is Reading.BODY:
            self.since = self._loop.time()
        # Bytes of a head that began in an earlier read. What a read holds of a head that begins in it is not known
        # here and is left out: the limit is on what may pile up.
        piled, in_body = self.reading is Reading.HEAD, self.reading is Reading.BODY
        size, body_before, chunks_before = len(data), self._body_size, self._chunks
        try:
            if self._raw_body:
                data = self._take_raw(data)
            while data:
                data = self._feed(data)
            if piled and self.reading is Reading.HEAD:
                self._head_size += size
                self._check_head(self._head_size)
            elif in_body and self.reading is Reading.BODY:
                # What is neither head nor body: extensions of chunks, trailers.
                self._overhead += (
                    size - (self._body_size - body_before) - CHUNK_OVERHEAD * (self._chunks - chunks_before)
                )
                self._check_head(self._overhead)
        except RelightError as error:
            self._refuse(error)

    def _feed(self, data: bytes) -> bytes:
        """Parse; what is left is the rest behind a request that asked for another protocol and does not get it."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
            return self._take_raw(rest) if self._raw_body else rest
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None
        except httptools.HttpParserError as error:
            raise BadInput(f"the request is not HTTP/1.1: {error}") from None
        return b""

    def _check_head(self, size: int) -> None:
        if size > self._limits.head:
            raise HeadTooLarge(f"the request's headers are over {self._limits.head} bytes")

    def _take_raw(self, data: bytes) -> bytes:
        """The parser skips the body of a request with Upgrade, an offer that is ignored here; its bytes are counted."""
        piece, rest = data[: self._raw_body], data[self._raw_body :]
        self._raw_body -= len(piece)
        self.on_body(piece)
        if not self._raw_body:
            self._complete()
        return rest

    # The parser's side.

    def on_message_begin(self) -> None:
        if self.reading is Reading.OVER:
            raise BadInput("nothing is taken behind a last request")
        self.reading = Reading.HEAD
        # The time of a head counts from its first byte: drops in the bucket do not renew it.
        self.since = self._loop.time()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.reading is Reading.BODY:
            return  # A trailer: it cannot change what was decided by the headers.
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        version = self._parser.get_http_version()
        self.reading = Reading.BODY
        self.since = self._loop.time()
        said = self._said
        if said is None or said.raw != self._headers or said.version != version:
            head = check_head(version, self._headers)
            said = self._said = _Said(version, self._headers, head, Headers.from_raw(self._headers))
        head = said.head
        self._check_head(len(self._url) + head.size)
        self._path, self._query = split_target(self._url)
        if head.length is not None and head.length > self._limits.body:
            raise TooLarge(f"the body is over {self._limits.body} bytes")
        if self._parser.should_upgrade():
            if head.chunked:
                raise BadInput("a request with Upgrade and a chunked body is not taken; send Content-Length")
            self._raw_body = head.length or 0
        if head.expect is not None:
            if head.expect.strip().lower() != b"100-continue":
                raise ExpectationFailed(f"cannot meet the expectation {head.expect[:40].decode('latin-1')!r}")
            if version == "1.1" and (head.length or head.chunked) and not self.busy and self._transport is not None:
                self._transport.write(CONTINUE)

    def on_chunk_header(self) -> None:
        self._chunks += 1

    def on_body(self, data: bytes) -> None:
        self._body.append(data)
        self._body_size += len(data)
        if self._body_size > self._limits.body:
            raise TooLarge(f"the body is over {self._limits.body} bytes")

    def on_message_complete(self) -> None:
        if not self._raw_body:
            self._complete()

    def _complete(self) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        method = self._parser.get_method().decode()
        assert self._said is not None  # since this request's headers were complete
        request = Request(method, self._path, self._said.headers, body, self._query)
        http10 = self._parser.get_http_version() == "1.0"
        self._waiting.append(_Received(request, self._parser.should_keep_alive(), http10))
        self._begin()
        self.reading = Reading.IDLE
        self.since = self._loop.time()
        self._next()
        if self._waiting:
            self._hold_back()

    # Work.

    def _next(self) -> None:
        """Work on the oldest request that waits, unless one is being worked on or the client does not read."""
        while self._transport is not None and self._current is None and not self.write_blocked:
            if self._transport.is_closing():
                return
            if not self._waiting:
                if self._refusal is not None:
                    self._part()
                return
            self._current = self._waiting.popleft()
            if self._held:
                self._hold_back()
            answer = self._server.engine.dispatch(self._current.request)
            if isinstance(answer, Pending):
                self._pending = answer
                # Done already, it must not be answered from within this call: calls would pile up.
                self._dispatching = True
                answer.future.add_done_callback(self._done)
                self._dispatching = False
                return
            self._answer(answer)

    def _hold_back(self) -> None:
        """Stop reading while much waits, and read again when little does."""
        if self._transport is None:
            return
        if not self._waiting:
            if self._held:
                self._held = False
                self._transport.resume_reading()
        elif not self._held:
            size = sum(len(received.request.body) for received in self._waiting)
            if len(self._waiting) > self._limits.pipelined or size > self._limits.pipelined_bytes:
                self._held = True
                self._transport.pause_reading()

    def _done(self, future: Future[Any]) -> None:
        # In the thread that computed. That may be the loop's own, in a turn of its own: then it is answered at once.
        if not self._dispatching and self._server.on_loop():
            self.respond(future)
        else:
            self._server.post(self, future)

    def respond(self, future: Future[Any]) -> None:
        """On the loop: what was waited for is there."""
        pending = self._pending
        if pending is None or pending.future is not future:
            return
        self._pending = None
        self._answer(pending.respond())
        self._next()

    def _answer(self, response: Response) -> None:
        self._served = True
        current, self._current = self._current, None
        if current is None or self._transport is None:
            return
        last = self._server.draining and not self._waiting
        self._write(response, keep_alive=current.keep_alive and not last, http10=current.http10)

    def _write(self, response: Response, *, keep_alive: bool, http10: bool) -> None:
        if self._transport is None:
            return
        date = self._server.date
        try:
            data = render(response, date=date, keep_alive=keep_alive, http10=http10)
        except ValueError as error:
            log.error("response.refused error=%s: the caller gets a 500", error)
            data = render(_BAD_HEADER, date=date, keep_alive=keep_alive, http10=http10)
        self._transport.write(data)
        self.since = self._loop.time()
        if not keep_alive:
            self.reading = Reading.OVER
            self._waiting.clear()
            self._transport.close()

    def _refuse(self, error: RelightError) -> None:
        """Answer what cannot be read, behind what is still being worked on, and close: what follows is not trusted."""
        if self.reading is Reading.OVER:
            return
        self.reading = Reading.OVER
        self._refusal = Response(error.status, _JSON, v2.error_body(error))
        self._next()

    def _part(self) -> None:
        """Send the refusal and close for writing; go on reading, to no end, for a while.

        A close while bytes come in is a reset, and a reset can reach the client before it has read the answer.
        """
        refusal, self._refusal = self._refusal, None
        assert refusal is not None
        assert self._transport is not None
        self._transport.write(render(refusal, date=self._server.date, keep_alive=False, http10=False))
        self._transport.write_eof()
        if self._held:
            self._transport.resume_reading()
        self._loop.call_later(LINGER, self._transport.close)

    # The server's side.

    @property
    def settled(self) -> bool:
        """Whether nothing is on its way here or back."""
        return not self.busy and self.reading is Reading.IDLE

    def close_if_idle(self) -> None:
        """Close between two requests. One that has not had its first is left: that may be on its way."""
        if self._transport is not None and self.settled and self._served:
            self._transport.close()

    def expired(self, now: float) -> bool:
        """Whether the client takes longer for what it does now than the limits allow."""
        limits = self._limits
        waited = now - self.since
        if self.write_blocked:
            return waited > limits.write_timeout
        if self.busy:
            return False
        if self.reading is Reading.HEAD:
            return waited > limits.head_timeout
        return waited > (limits.body_timeout if self.reading is Reading.BODY else limits.idle_timeout)

    def abort(self) -> None:
        """Cut the connection."""
        if self._transport is not None:
            self._transport.abort()
