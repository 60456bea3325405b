"""A function's process in local mode: forked by the platform, on a socket that the platform bound.

The control channel is a socket to the platform, with JSON lines: ``ready`` with the phases of the start, or ``failed``
with the phase and the error. When it closes, the platform is gone, and the replica ends as if it had been told to.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

import orjson
import uvloop

from relight.base import logs
from relight.proc import limiting
from relight.runtime import serve
from relight.runtime.function import Function
from relight.runtime.lifecycle import State
from relight.runtime.timeline import Timeline

log = logging.getLogger("relight.replica")


def run(payload: dict[str, Any], fds: list[int]) -> int:
    """Serve until told to stop; the process's exit code. 0: drained. 1: the function could not be loaded."""
    limiting.apply(payload.get("limits") or {})
    timeline = Timeline(payload.get("stamps", {}).get("decided"))
    timeline.mark("fork")
    environ: Mapping[str, str] = payload["env"]
    os.environ.update(environ)
    logs.configure(environ.get("RELIGHT_LOG_LEVEL") or "info", json_lines=True)
    listener = socket.socket(fileno=fds[0])
    control = socket.socket(fileno=fds[1])
    with listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(payload["source"], listener, control, timeline))


async def _serve(source: str, listener: socket.socket, control: socket.socket, timeline: Timeline) -> int:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    channel = _Channel(loop, control, ended.set)
    channel.open()
    engine = serve.engine_for(lambda: load_function(source), os.environ, timeline)
    settled: asyncio.Future[tuple[State, str]] = loop.create_future()

    def moved(state: State, reason: str) -> None:
        if state in (State.READY, State.FAILED) and not settled.done():
            settled.set_result((state, reason))
            if state is State.FAILED:
                ended.set()

    # Heard in the thread that loads: the loop is where the rest happens.
    def heard(state: State, reason: str) -> None:
        loop.call_soon_threadsafe(moved, state, reason)

    def announce() -> None:
        # Only now: gRPC takes the port over when it starts, and whoever connects before that is cut off.
        settled.add_done_callback(lambda done: _tell(channel, timeline, *done.result()))

    engine.listen(heard)
    engine.start()
    await serve.serve(engine, [listener], ended, started=announce)
    failed = settled.done() and settled.result()[0] is State.FAILED
    channel.close()
    return 1 if failed else 0


def _tell(channel: _Channel, timeline: Timeline, state: State, reason: str) -> None:
    if state is State.READY:
        channel.tell({"event": "ready", "phases": timeline.phases})
    else:
        error = reason.partition(" failed: ")[2] or reason
        channel.tell({"event": "failed", "phase": timeline.current, "error": error})


def load_function(source: str) -> Function:
    """``new()`` of the package ``function`` in a folder; the folder is this process's only one.

    It becomes the working directory, as it is under func, and the first entry of ``sys.path``.
    """
    os.chdir(source)
    sys.path[:] = [source, *(entry for entry in sys.path if entry not in ("", source))]
    importlib.invalidate_caches()
    module = importlib.import_module("function")
    function = module.new()
    if not isinstance(function, Function):
        raise TypeError(f"new() returned {type(function).__name__}; expected a Model or a Step of relight.sdk")
    return function


class _Channel:
    """The replica's end of the control channel."""

    def __init__(self, loop: asyncio.AbstractEventLoop, control: socket.socket, lost: Callable[[], None]) -> None:
        self._loop = loop
        self._control = control
        self._lost = lost

    def open(self) -> None:
        self._control.setblocking(False)
        self._loop.add_reader(self._control, self._read)

    def _read(self) -> None:
        try:
            data = self._control.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            log.info("control.closed: the platform is gone, this replica ends")
            self._loop.remove_reader(self._control)
            self._lost()

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send one line. It always fits the socket's buffer: there are two in a replica's life."""
        try:
            self._control.send(orjson.dumps(message) + b"\n")
        except OSError as error:
            log.warning("control.lost error=%s: this replica ends", error)
            self._lost()

    def close(self) -> None:
        self._loop.remove_reader(self._control)
        self._control.close()
