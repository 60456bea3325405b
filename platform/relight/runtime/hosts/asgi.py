"""The ASGI face: for func's middleware (hypercorn), and any other ASGI server.

Known faults of func's middleware that are worked round here: an exception's text would reach the client (none leaves),
a handler is cancelled 3 s after SIGTERM (the signal is held back until all is answered), ``start`` runs on the event
loop (it returns at once).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from relight.base.errors import NotReady, TooLarge
from relight.base.tasks import Tasks
from relight.runtime import endpoints
from relight.runtime.hosts.server import SETTLE
from relight.runtime.pending import Pending
from relight.runtime.workers import RETRY_AFTER
from relight.wire.http import Headers, Request, Response

if TYPE_CHECKING:
    from relight.runtime.engine import Engine
    from relight.runtime.function import Function, Receive, Scope, Send

log = logging.getLogger("relight.asgi")


class Face:
    """One engine as an ASGI application, and its drain."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tasks = Tasks("asgi")
        self._in_flight = 0
        self._draining = False
        self._idle = asyncio.Event()

    def take_over_sigterm(self) -> None:
        """Hold the server's own reaction to SIGTERM back until all that is in flight is answered.

        Only on the main thread and its running loop: elsewhere there is no handler to replace.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        loop.add_signal_handler(signal.SIGTERM, self._terminated)

    def _terminated(self) -> None:
        if self._draining:
            self._hand_back()  # Asked twice: the one who asks does not want to wait.
            return
        self._draining = True
        self._tasks.spawn(self._drain(), "drain")

    async def _drain(self) -> None:
        self._engine.drain()
        await asyncio.sleep(SETTLE)
        self._engine.refuse()
        self._told()
        await self._idle.wait()
        self._hand_back()

    def _hand_back(self) -> None:
        """Let the server stop in its own way: its handler of SIGINT is still the one that it set."""
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)

    def _told(self) -> None:
        if self._draining and self._in_flight == 0:
            self._idle.set()
        else:
            self._idle.clear()

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        self._in_flight += 1
        try:
            response = await self._response(scope, receive)
            if response is not None:
                await _send(send, response)
        finally:
            self._in_flight -= 1
            self._told()

    async def _response(self, scope: Scope, receive: Receive) -> Response | None:
        """None: the caller hung up."""
        request = Request(
            scope["method"],
            scope["path"],
            Headers.from_raw(scope["headers"]),
            query=scope.get("query_string", b"").decode("latin-1"),
        )
        limit = self._engine.settings.max_body
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                return endpoints.failure(request, TooLarge(f"the body is over {limit} bytes"))
            if not message.get("more_body", False):
                break
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        answer = self._engine.dispatch(Request(request.method, request.path, request.headers, body, request.query))
        return await self._wait(answer, receive) if isinstance(answer, Pending) else answer

    async def _wait(self, pending: Pending, receive: Receive) -> Response | None:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def wake(_: Future[Any]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(done.set)

        pending.future.add_done_callback(wake)
        watch = self._tasks.spawn(_hung_up(receive, done), "hang-up")
        try:
            await done.wait()
        except asyncio.CancelledError:
            pending.abandon()
            raise
        finally:
            watch.cancel()
        if pending.future.done():
            return pending.respond()
        pending.abandon()
        return None


async def _hung_up(receive: Receive, done: asyncio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    done.set()


async def _send(send: Send, response: Response) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in response.headers]
    if response.status != 204 and not any(name == b"content-length" for name, _ in headers):
        headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


async def lifespan(function: Function, receive: Receive, send: Send) -> None:
    """Start and stop with the server. func's middleware does this itself; other ASGI servers ask for it."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            function.start(os.environ.copy())
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            function.stop()
            await send({"type": "lifespan.shutdown.complete"})
            return


async def unstarted(scope: Scope, send: Send) -> None:
    """Answer for a function that nobody has started."""
    error = NotReady("the function is not started", retry_after=RETRY_AFTER)
    await _send(send, endpoints.failure(Request(scope["method"], scope["path"]), error))
