"""A function served in this process, on a real socket, by our own protocol."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvloop

from relight.runtime.context import FunctionSettings
from relight.runtime.engine import Engine
from relight.runtime.function import Function
from relight.runtime.hosts.limits import Limits
from relight.runtime.hosts.server import Server
from relight.runtime.lifecycle import State


@dataclass
class Served:
    """Where it listens, and its parts."""

    engine: Engine
    port: int = 0
    server: Server | None = None
    loop: asyncio.AbstractEventLoop | None = None
    _stopping: asyncio.Event | None = None
    _up: threading.Event = field(default_factory=threading.Event)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def exchange(self, data: bytes) -> bytes:
        """Send, and read until the server closes."""
        with self.connect() as sock:
            sock.sendall(data)
            return drained(sock)


def drained(sock: socket.socket) -> bytes:
    """All that comes until the other end closes."""
    parts = []
    while part := sock.recv(65536):
        parts.append(part)
    return b"".join(parts)


def loaded(function: Function, **environ: str) -> Engine:
    """An engine whose function is loaded, or has failed to."""
    engine = Engine(lambda: function, FunctionSettings.from_environ(environ))
    settled = threading.Event()
    engine.listen(lambda state, _: settled.set() if state in (State.READY, State.FAILED) else None)
    engine.start()
    assert settled.wait(10)
    return engine


@contextmanager
def served(function: Function, limits: Limits | None = None, **environ: str) -> Iterator[Served]:
    """Serve a loaded function until the block ends."""
    here = Served(loaded(function, **environ))

    async def main() -> None:
        here.loop = asyncio.get_running_loop()
        here._stopping = asyncio.Event()
        here.server = Server(here.engine, limits)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            here.port = listener.getsockname()[1]
            await here.server.start([listener])
            here._up.set()
            await here._stopping.wait()
            await here.server.stop()

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())

    thread = threading.Thread(target=run, name="served")
    thread.start()
    assert here._up.wait(10)
    try:
        yield here
    finally:
        assert here.loop is not None
        assert here._stopping is not None
        here.loop.call_soon_threadsafe(here._stopping.set)
        thread.join(10)
        here.engine.stop()
        assert not thread.is_alive()
