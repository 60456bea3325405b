"""gunicorn's worker class: our protocol on uvloop, in each worker that the arbiter forks.

In a function's folder: ``gunicorn --no-control-socket -k relight.runtime.hosts.gunicorn.Worker "function:new()"``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from typing import Any

import uvloop
from gunicorn.arbiter import Arbiter
from gunicorn.workers import base

from relight.base import logs
from relight.runtime.function import Function
from relight.runtime.serve import host_for

HEARTBEAT = 1.0
"""Seconds between two signs of life for the arbiter, which kills a worker after ``timeout`` (30 s) without one."""


class Worker(base.Worker):  # type: ignore[misc]  # gunicorn has no types
    """One event loop, made after the fork. SIGTERM: unready, answer what is there, exit 0. SIGINT, SIGQUIT: at once."""

    def init_process(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._stopping = asyncio.Event()
        asyncio.set_event_loop(self._loop)
        if not logging.getLogger().handlers:
            logs.configure(os.environ.get("RELIGHT_LOG_LEVEL") or "info")
        super().init_process()

    def init_signals(self) -> None:
        for number in self.SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        handlers: dict[signal.Signals, Any] = {
            signal.SIGTERM: self._stopping.set,
            signal.SIGINT: self._quit,
            signal.SIGQUIT: self._quit,
            signal.SIGUSR1: self.log.reopen_files,
            signal.SIGABRT: self._abort,
            signal.SIGWINCH: lambda: None,
        }
        for number, handler in handlers.items():
            self._loop.add_signal_handler(number, handler)

    def _quit(self) -> None:
        self.alive = False
        self.cfg.worker_int(self)
        self._stopping.set()

    def _abort(self) -> None:
        self.cfg.worker_abort(self)
        os._exit(1)

    def run(self) -> None:
        function = self.wsgi
        if not isinstance(function, Function):
            self.log.error("%r is no function: expected what new() of a function's package returns", function)
            # This code tells the arbiter to end, and not to try again and again.
            sys.exit(Arbiter.APP_LOAD_ERROR)
        try:
            self._loop.run_until_complete(self._serve(function))
        finally:
            self._loop.close()

    async def _serve(self, function: Function) -> None:
        engine = function.new_engine(os.environ)
        engine.start()
        server = host_for(engine)
        await server.start([listener.sock for listener in self.sockets])
        self._beat()
        await self._stopping.wait()
        if self.alive:
            # gunicorn's own limit; the arbiter kills what is left then.
            await server.drain(self.cfg.graceful_timeout)
        await server.stop()
        engine.stop()

    def _beat(self) -> None:
        self.notify()
        if os.getppid() != self.ppid:
            self.log.info("the arbiter is gone: worker %s ends", self.pid)
            self._stopping.set()
        self._loop.call_later(HEARTBEAT, self._beat)
