"""Listening, sweeping and draining for the connections of ``HttpProtocol``."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from email.utils import formatdate
from typing import Any

from relight.runtime.engine import Engine
from relight.runtime.hosts.limits import Limits
from relight.runtime.hosts.protocol import HttpProtocol

log = logging.getLogger("relight.server")

SETTLE = 0.05
"""Seconds after the call to stop in which requests are still taken: they were sent before anyone could know."""
BACKLOG = 1024
"""Connections that may wait to be accepted: those that were held while the process started come at once."""
SWEEP = 1.0
"""Seconds between two looks for connections that take too long."""


class Server:
    """Serves an engine on sockets that are bound already. ``start``, ``drain``, ``stop``; each may be called again."""

    def __init__(self, engine: Engine, limits: Limits | None = None) -> None:
        self.engine = engine
        self.limits = limits or Limits(body=engine.settings.max_body)
        self.draining = False
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._servers: list[asyncio.Server] = []
        self._connections: set[HttpProtocol] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._thread = threading.get_ident()
        self._mail: deque[tuple[HttpProtocol, Future[Any]]] = deque()
        self._posted = False
        self.date = formatdate(usegmt=True)
        """The Date header of answers, right to a second: made anew at every sweep."""

    async def start(self, sockets: Iterable[socket.socket]) -> None:
        """Accept on these sockets, which stay the caller's to close."""
        for sock in sockets:
            sock.setblocking(False)
            server = await self.loop.create_server(lambda: HttpProtocol(self), sock=sock.dup(), backlog=BACKLOG)
            self._servers.append(server)
        self._sweeper = self.loop.call_later(SWEEP, self._sweep)

    async def drain(self, timeout: float | None = None) -> bool:
        """Unready, then take nothing new, then wait until all that was taken is answered. False: time ran out.

        The listener stays open until then: whoever has not heard of it yet gets 503 with Retry-After, not a refusal.
        """
        self.engine.drain()
        await asyncio.sleep(SETTLE)
        self.engine.refuse()
        self.draining = True
        for connection in tuple(self._connections):
            connection.close_if_idle()
        self._tell()
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except TimeoutError:
            log.warning("drain.timeout connections=%d: they are cut off", len(self._connections))
            return False
        return True

    async def stop(self) -> None:
        """Close the listener and every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for server in self._servers:
            server.close()
        for connection in tuple(self._connections):
            connection.abort()
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()

    # What connections tell.

    def on_loop(self) -> bool:
        """Whether this is the loop's thread."""
        return threading.get_ident() == self._thread

    def post(self, connection: HttpProtocol, future: Future[Any]) -> None:
        """Have ``connection.respond(future)`` called on the loop; from any thread. A batch wakes the loop once."""
        self._mail.append((connection, future))
        # Whoever sets the flag wakes the loop; the loop takes it down before it looks for the last time.
        if not self._posted:
            self._posted = True
            if self.on_loop():
                self.loop.call_soon(self._deliver)
            elif not self.loop.is_closed():  # It is gone only after every connection is: then nobody waits.
                self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._posted = False
        try:
            while self._mail:
                connection, future = self._mail.popleft()
                connection.respond(future)
        finally:
            if self._mail and not self._posted:
                self._posted = True
                self.loop.call_soon(self._deliver)

    def opened(self, connection: HttpProtocol) -> None:
        self._connections.add(connection)
        self._idle.clear()

    def closed(self, connection: HttpProtocol) -> None:
        self._connections.discard(connection)
        self._tell()

    def _tell(self) -> None:
        if self.draining and all(connection.settled for connection in self._connections):
            self._idle.set()

    def _sweep(self) -> None:
        now = self.loop.time()
        self.date = formatdate(usegmt=True)
        for connection in tuple(self._connections):
            if connection.expired(now):
                log.info("connection.expired reading=%s", connection.reading.value)
                connection.abort()
        self._sweeper = self.loop.call_later(SWEEP, self._sweep)
