"""A function served in this process, on a real socket, by our own protocol."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import uvloop

from relight.runtime.context import FunctionSettings
from relight.runtime.engine import Engine
from relight.runtime.function import Function
from relight.runtime.hosts.limits import Limits
from relight.runtime.hosts.server import Server
from relight.runtime.lifecycle import State


class Serving(Protocol):
    """What listens: our protocol's server, or gRPC's."""

    async def start(self, sockets: list[socket.socket]) -> None: ...

    async def stop(self) -> None: ...


S = TypeVar("S", bound=Serving)


@dataclass
class Listening(Generic[S]):
    """Where a server listens, and its parts."""

    engine: Engine
    port: int = 0
    server: S | None = None
    loop: asyncio.AbstractEventLoop | None = None
    _stopping: asyncio.Event | None = None
    _up: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self, make: Callable[[Engine], S]) -> Iterator[None]:
        """Serve the engine until the block ends."""
        thread = threading.Thread(target=self._run, args=(make,), name="listening")
        thread.start()
        assert self._up.wait(10)
        try:
            yield
        finally:
            assert self.loop is not None
            assert self._stopping is not None
            self.loop.call_soon_threadsafe(self._stopping.set)
            thread.join(10)
            self.engine.stop()
            assert not thread.is_alive()

    def _run(self, make: Callable[[Engine], S]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._main(make))

    async def _main(self, make: Callable[[Engine], S]) -> None:
        self.loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self.server = make(self.engine)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
            await self.server.start([listener])
            self._up.set()
            await self._stopping.wait()
            await self.server.stop()


@dataclass
class Served(Listening[Server]):
    """A function on a real socket."""

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
    with here.running(lambda engine: Server(engine, limits)):
        yield here
