"""The router: one listener for all functions of this machine.

A reverse proxy as an asyncio Protocol on httptools, because a handler of a web framework costs ten times as much CPU
per request. A connection of a client (``downstream``) makes exchanges, an exchange (``exchange``) passes the
revision's gate (``activator``) and uses a pooled connection to a replica (``upstream``).
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
from collections.abc import Callable, Mapping

import orjson
from prometheus_client import CollectorRegistry

from relight.base.tasks import Tasks
from relight.local.serving.activator import Gates
from relight.local.serving.context import Context, RouterSettings
from relight.local.serving.deadlines import Deadlines
from relight.local.serving.downstream import ClientConnection
from relight.local.serving.h2replicas import ReplicaLinks
from relight.local.serving.metrics import RouterMetrics
from relight.local.serving.routes import Routes
from relight.local.serving.types import RevisionKey
from relight.local.serving.upstream import Pools
from relight.wire.http import Response

log = logging.getLogger("relight.router")


class Router:
    """``start`` serves on a listening socket, ``stop`` drains. One router per pair of tables."""

    def __init__(
        self,
        routes: Routes,
        gates: Gates,
        *,
        registry: CollectorRegistry | None = None,
        settings: RouterSettings | None = None,
        pages: Mapping[bytes, Callable[[], Response]] | None = None,
        on_replica_error: Callable[[RevisionKey, str], None] = lambda key, replica_id: None,
        on_first_answer: Callable[[RevisionKey, str, float], Mapping[str, float]] = lambda key, replica_id, seconds: {},
        clock: Callable[[], float] = time.monotonic,
        random01: Callable[[], float] = random.random,
    ) -> None:
        tasks = Tasks("router")
        self._context = Context(
            routes=routes,
            gates=gates,
            settings=settings or RouterSettings(),
            metrics=RouterMetrics(gates, registry),
            deadlines=Deadlines(clock),
            pools=Pools(clock),
            links=ReplicaLinks(tasks),
            tasks=tasks,
            clock=clock,
            pages={b"/": self._list_functions, **(pages or {})},
            on_replica_error=on_replica_error,
            on_first_answer=on_first_answer,
            random01=random01,
        )
        self._server: asyncio.Server | None = None

    async def start(self, sock: socket.socket) -> None:
        """Serve on a bound socket, which the router owns from here on."""
        context = self._context
        context.metrics.register()
        self._server = await asyncio.get_running_loop().create_server(
            lambda: ClientConnection(context), sock=sock, backlog=4096
        )
        context.deadlines.watched.add(context.pools)
        context.pools.start(context.settings.pool_idle)
        host, port = sock.getsockname()[:2]
        log.info("router.started address=http://%s:%d", host, port)

    async def stop(self, grace: float = 10.0) -> None:
        """Stop accepting, let what is in flight end within ``grace`` seconds, cut the rest. Idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        context = self._context
        # The door first: what is not accepted any more gets a refused connection instead of a reset one.
        server.close()
        context.draining = True
        for connection in list(context.connections):
            connection.stop()
        if context.connections:
            context.all_closed = asyncio.Event()
            try:
                await asyncio.wait_for(context.all_closed.wait(), grace)
            except TimeoutError:
                busy = sum(connection.busy for connection in context.connections)
                if busy:
                    log.warning("router.stop cut=%d: these requests had no whole answer after %g s", busy, grace)
                for connection in list(context.connections):
                    connection.vanish_now()
        context.deadlines.close()
        await context.tasks.stop()
        context.pools.close()
        context.links.close()
        context.metrics.unregister()

    @property
    def connections(self) -> int:
        """Clients' connections that are open."""
        return len(self._context.connections)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of requests and answers that are kept in this process now, sockets' own buffers not counted."""
        context = self._context
        return sum(connection.buffered() for connection in context.connections) + context.links.buffered()

    def _list_functions(self) -> Response:
        functions = [
            {"namespace": route.namespace, "name": route.name, "path": f"/{route.namespace}/{route.name}/"}
            for route in self._context.routes
        ]
        return Response(200, (("content-type", "application/json"),), orjson.dumps({"functions": functions}))
