"""A function served over gRPC in this process, on a real port, and Triton's own client for it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import tritonclient.grpc as triton
import uvloop
from runtime.serving import loaded

from relight.runtime.engine import Engine
from relight.runtime.function import Function
from relight.runtime.hosts.grpc import GrpcServer


@dataclass
class Called:
    """Where it listens, and its parts."""

    engine: Engine
    port: int = 0
    server: GrpcServer | None = None
    loop: asyncio.AbstractEventLoop | None = None
    _stopping: asyncio.Event | None = None
    _up: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    @contextmanager
    def client(self) -> Iterator[triton.InferenceServerClient]:
        with triton.InferenceServerClient(self.url) as client:
            yield client


@contextmanager
def called(function: Function | Engine, **environ: str) -> Iterator[Called]:
    """Serve a function (loaded) or an engine (as it is) until the block ends."""
    engine = function if isinstance(function, Engine) else loaded(function, **environ)
    here = Called(engine)

    async def main() -> None:
        here.loop = asyncio.get_running_loop()
        here._stopping = asyncio.Event()
        here.server = GrpcServer(here.engine)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            here.port = listener.getsockname()[1]
            await here.server.start([listener])
            here._up.set()
            await here._stopping.wait()
            await here.server.stop()

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())

    thread = threading.Thread(target=run, name="called")
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
