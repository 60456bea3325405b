"""The broker's listener: an asyncio Protocol on httptools for events, aiohttp for everything else.

Events are many and small, and aiohttp's share of accepting one is larger than all the rest together. A connection whose
next request is no POST of an event is handed over to aiohttp with the bytes that it has sent, and stays there.

The parser (llhttp, strict) refuses what request smuggling is made of.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast

import httptools
from aiohttp import web

from relight.base.errors import PortTaken
from relight.base.tasks import Tasks
from relight.wire.http import Headers, Response

log = logging.getLogger("relight.eventing")

HEAD = 64 * 1024
"""Bytes of a request's head at most."""
TARDY = 30.0
"""Seconds for a request to arrive."""
IDLE = 75.0
"""Seconds that a connection is kept without a request."""
LOOK = 5.0
"""Seconds between two looks for connections that are tardy or idle."""
LINGER = 1.0
"""Seconds that a refused client may go on sending."""
SHUTDOWN = 5.0
"""Seconds that requests under way get when the listener closes."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


@dataclass(frozen=True, slots=True)
class Post:
    """A POST as it came in. ``body`` None: it was longer than the limit and was not read."""

    path: str
    headers: Headers
    body: bytes | None
    keep_alive: bool


Answer = Callable[[Post, Callable[[Response], None]], None]
"""Answers a post by calling back on the loop, now or later."""


class Door:
    """The listener. ``answer`` is for events; ``others`` is an aiohttp server for everything else."""

    def __init__(self, answer: Answer, others: web.Server, limit: int) -> None:
        self.answer = answer
        self.others = others
        self.limit = limit
        self.tasks = Tasks("door")
        self.connections: set[_Connection] = set()
        self.closing = False
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; the port, which is a free one if 0 was asked for. PortTaken if another program has it."""
        try:
            self._server = await asyncio.get_running_loop().create_server(lambda: _Connection(self), host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise PortTaken(f"port {port} for the broker is taken; set RELIGHT_BROKER_PORT to another, or 0") from error
        self.tasks.spawn(self._watch(), "watch")
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close the door; requests under way are answered. Idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        self.closing = True
        server.close()
        for connection in list(self.connections):
            connection.end_when_idle()
        deadline = asyncio.get_running_loop().time() + SHUTDOWN
        await self.others.shutdown(SHUTDOWN)
        while self.connections and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.abort()
        await self.tasks.stop()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            now = asyncio.get_running_loop().time()
            for connection in list(self.connections):
                connection.look(now)


class _Connection(asyncio.Protocol):
    """One client: its requests are answered one after another."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)
        self._since = self._loop.time()
        self._raw: list[bytes] = []
        """What came since the last request was complete: what aiohttp would need."""
        self._reading = False
        self._decided = False
        self._parsing = False
        self._answering = False
        self._ended = False
        self._waiting: deque[Post] = deque()
        self._last_word = b""
        self._url = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._size = 0

    # -- what the loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._door.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._door.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        if self._ended or self._last_word:
            return
        if not self._decided:
            self._raw.append(data)
        self._parsing = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, _Elsewhere):
                log.exception("door.failed: the connection is closed")
                self.abort()
                return
            self._hand_over()
            return
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(400, "the request is not well-formed HTTP")
            return
        finally:
            self._parsing = False
        if self._reading and not self._decided and sum(map(len, self._raw)) > HEAD:
            self._refuse(431, f"the request's head is longer than {HEAD} bytes")
        elif self._answering:
            self._transport.pause_reading()

    # -- what the parser tells

    def on_message_begin(self) -> None:
        self._reading, self._decided = True, False
        self._since = self._loop.time()
        self._url, self._fields, self._body, self._size = b"", [], [], 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        if self._parser.get_method() != b"POST" or self._url.startswith((b"/-/", b"http")):
            raise _Elsewhere
        self._decided = True
        self._raw = []
        for name, value in self._fields:
            lowered = name.lower()
            if lowered == b"content-length" and int(value) > self._door.limit:
                self._size = int(value)
            elif lowered == b"expect" and value.lower() == b"100-continue" and self._size <= self._door.limit:
                self._transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        if self._size > self._door.limit:
            return
        self._size += len(body)
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._reading = self._decided = False
        body = None if self._size > self._door.limit else b"".join(self._body)
        path = self._url.partition(b"?")[0].decode("latin-1")
        self._raw, self._body = [], []
        self._waiting.append(Post(path, Headers.from_raw(self._fields), body, self._parser.should_keep_alive()))
        if not self._answering:
            self._next()

    # -- answering

    def _next(self) -> None:
        """Have the oldest post answered. No task: they would cost more than all else here."""
        self._answering = True
        post = self._waiting.popleft()
        try:
            self._door.answer(post, lambda response: self._answered(post, response))
        except Exception:
            log.exception("door.failed: the connection is closed")
            self.abort()

    def _answered(self, post: Post, response: Response) -> None:
        if self._parsing:
            # An answer that needs no waiting: what comes behind the request in the same bytes is parsed first.
            self._loop.call_soon(self._answered, post, response)
            return
        self._answering = False
        if self._ended:
            return
        last = not post.keep_alive or self._door.closing
        self._transport.write(_rendered(response, last))
        self._since = self._loop.time()
        if last:
            self._end()
        elif self._waiting:
            self._loop.call_soon(self._next_if_idle)
        elif self._last_word:
            self._say_last()
        else:
            self._transport.resume_reading()

    def _next_if_idle(self) -> None:
        if self._waiting and not self._answering and not self._ended:
            self._next()

    def _refuse(self, status: int, sentence: str) -> None:
        """Answer what cannot be read, and hang up: where the next request begins is not known."""
        text = (("content-type", "text/plain; charset=utf-8"),)
        self._last_word = _rendered(Response(status, text, f"{sentence}\n".encode()), True)
        if self._answering:
            self._transport.pause_reading()  # what was asked before is answered first
        else:
            self._say_last()

    def _say_last(self) -> None:
        """Whoever still sends is read for a moment, or the reset of the connection might take the answer along."""
        self._ended = True
        self._transport.write(self._last_word)
        self._transport.write_eof()
        self._transport.resume_reading()
        self._loop.call_later(LINGER, self._transport.close)

    def _hand_over(self) -> None:
        """The rest of this connection is aiohttp's."""
        if self._answering or self._waiting:
            self._refuse(400, "a request that is no event must not be sent before the answer to the one before it")
            return
        self._ended = True
        self._door.connections.discard(self)
        handler = self._door.others()
        self._transport.set_protocol(handler)
        handler.connection_made(self._transport)
        handler.data_received(b"".join(self._raw))
        self._raw = []

    # -- ends

    def look(self, now: float) -> None:
        """Hang up where a request does not come to its end, or none has come for long."""
        if self._answering or self._ended:
            return
        if self._reading and now - self._since > TARDY:
            self._refuse(400, f"the request did not arrive within {TARDY:g} s")
        elif not self._reading and now - self._since > IDLE:
            self._end()

    def end_when_idle(self) -> None:
        if not self._answering and not self._waiting:
            self._end()

    def abort(self) -> None:
        self._ended = True
        self._transport.abort()
        self._door.connections.discard(self)

    def _end(self) -> None:
        self._ended = True
        self._transport.close()


class _Elsewhere(Exception):
    """This request is not for here."""


def _rendered(response: Response, last: bool) -> bytes:
    parts = [_LINES.get(response.status) or b"HTTP/1.1 %d \r\n" % response.status]
    parts += [f"{name}: {value}\r\n".encode("latin-1") for name, value in response.headers]
    parts.append(b"content-length: %d\r\n" % len(response.body))
    if last:
        parts.append(b"connection: close\r\n")
    parts += [b"\r\n", response.body]
    return b"".join(parts)
