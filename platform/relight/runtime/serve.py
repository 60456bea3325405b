"""One function in one process of its own: ``python -m relight.runtime.serve [FOLDER]`` serves it on ``$PORT``.

For images without gunicorn. Replicas of local mode run the same, on a socket that the platform made, and gunicorn's
worker takes from here who speaks the protocol that is asked for (``RELIGHT_PROTOCOL``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import uvloop

from relight.base import logs
from relight.base.errors import BadInput, RelightError
from relight.net import listener
from relight.runtime.context import FunctionSettings
from relight.runtime.engine import Engine
from relight.runtime.function import Function
from relight.runtime.hosts.server import Server
from relight.runtime.timeline import Timeline

log = logging.getLogger("relight.serve")

PORT = 8080
"""Where the environment names none: Knative's default."""


class Host(Protocol):
    """What serves an engine: the HTTP server or the gRPC one."""

    async def start(self, sockets: Sequence[socket.socket]) -> None: ...

    async def drain(self, timeout: float | None = None) -> bool: ...

    async def stop(self) -> None: ...


def engine_for(source: Callable[[], Function], environ: Mapping[str, str], timeline: Timeline) -> Engine:
    """An engine by the environment; where that is wrong, one that refuses every request with the reason."""
    try:
        settings = FunctionSettings.from_environ(environ)
    except BadInput as error:
        return Engine(_raising(error), FunctionSettings(), timeline)
    return Engine(source, settings, timeline)


def _raising(error: Exception) -> Callable[[], Function]:
    def source() -> Function:
        raise error

    return source


def host_for(engine: Engine) -> Host:
    """The server of the protocol that the engine's settings ask for."""
    if engine.settings.protocol == "grpc":
        from relight.runtime.hosts.grpc import GrpcServer

        return GrpcServer(engine)
    return Server(engine)


async def serve(
    engine: Engine, sockets: Sequence[socket.socket], ended: asyncio.Event, *, started: Callable[[], None]
) -> None:
    """Serve an engine that was started until ``ended``, then drain: what was taken is answered."""
    host = host_for(engine)
    await host.start(sockets)
    started()
    await ended.wait()
    await host.drain()
    await host.stop()
    engine.stop()


def main(argv: Sequence[str]) -> int:
    """0: told to stop, and drained. 2: the port or the folder cannot be used."""
    from relight.runtime.replica import load_function

    logs.configure(os.environ.get("RELIGHT_LOG_LEVEL") or "info", json_lines=not sys.stderr.isatty())
    folder = Path(argv[0] if argv else ".").resolve()
    port = os.environ.get("PORT") or str(PORT)
    try:
        if not (folder / "function").is_dir():
            raise BadInput(f"{folder} holds no package 'function'")
        if not (port.isascii() and port.isdecimal() and int(port) < 65536):
            raise BadInput(f"PORT: expected a port, got {port!r}")
        listening = listener.bind("0.0.0.0", int(port), setting="PORT")
    except RelightError as error:
        log.error("serve.refused error=%s", error.message)
        return 2
    engine = engine_for(lambda: load_function(str(folder)), os.environ, Timeline())
    with listening, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main(engine, listening))
    return 0


async def _main(engine: Engine, listening: socket.socket) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    address = listening.getsockname()
    engine.start()
    await serve(
        engine,
        [listening],
        ended,
        started=lambda: log.info("serve.started protocol=%s address=%s:%d", engine.settings.protocol, *address),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
