"""The platform's side of a zygote: start it, have it fork, outlive it.

Children are the zygote's until it ends. Then they come to the platform, where it is subreaper; their owners notice
nothing, but new forks fail and the owner starts children by ``spawn`` until it has another zygote.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relight.base.errors import Deadline, PlatformError
from relight.proc import passing, stamps
from relight.proc.child import Child, end_session, reap, reap_alone
from relight.proc.exits import ExitStatus
from relight.proc.spawn import open_log, own, start
from relight.proc.target import QUIET

log = logging.getLogger("relight.proc")

SEND_TIMEOUT = 10.0
"""Seconds that a request may wait for room in the socket: a zygote that forks takes one every few milliseconds."""


@dataclass(frozen=True)
class Report:
    """What a zygote says when it is ready."""

    import_s: float
    """Seconds that the imports took."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Modules that could not be imported, and why. It goes on without them."""
    threads: tuple[str, ...] = ()
    """Threads beside the main one, by name."""


class Zygote:
    """A process that has ``preload`` imported and forks children from there. One loop, one owner."""

    def __init__(
        self,
        preload: tuple[str, ...],
        *,
        log_path: Path,
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.preload = preload
        self.report: Report | None = None
        self._python = python
        self._env = env
        self._log_path = log_path
        self._control: socket.socket | None = None
        self._process: Child | None = None
        self._ready: asyncio.Future[dict[str, Any]] | None = None
        self._made_of: Mapping[str, list[int]] = {}
        """Files that it was made from, as they were."""
        self._pending: dict[int, tuple[str, asyncio.Future[Child]]] = {}
        self._children: dict[int, Child] = {}
        self._numbers = itertools.count()
        self._sending = asyncio.Lock()
        self._adopting: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """It takes forks."""
        return self._control is not None and self.report is not None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def is_stale(self) -> bool:
        """Whether code that it has imported was changed since, or taken away. Reads the disk; for a thread."""
        return any(stamps.stamp(path) != seen for path, seen in self._made_of.items())

    async def start(self, timeout: float = 60.0) -> Report:
        """Start it and wait until its imports are done.

        PlatformError where it ends before that or could not fork safely, Deadline where it takes too long; either way
        nothing is left of it.
        """
        if self._process is not None:
            raise PlatformError("this zygote was started before")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        try:
            output = open_log(self._log_path)
            try:
                argv = [self._python, "-P", "-m", "relight.proc.zygote_main", str(theirs.fileno()), *self.preload]
                environ = {**(os.environ if self._env is None else self._env), **QUIET}
                self._process = own(start(argv, (theirs.fileno(),), environ, output), "zygote")
            finally:
                os.close(output)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._process.watch(reap_alone)  # a child that is not yet in a session of its own may not go with it
        self._control = ours
        loop.add_reader(ours, self._readable)
        try:
            async with asyncio.timeout(timeout):
                answer = await asyncio.shield(self._ready)
            if answer["unsafe"]:
                raise PlatformError(
                    f"a zygote with {', '.join(self.preload)} cannot fork safely: "
                    f"these imports left threads running ({', '.join(answer['unsafe'])})"
                )
        except BaseException as error:
            await self.stop()
            if isinstance(error, TimeoutError):
                raise Deadline(f"the zygote's imports took more than {timeout:.0f} s") from error
            raise
        self.report = Report(answer["import_s"], answer["failed"], tuple(answer["threads"]))
        for module, reason in self.report.failed.items():
            log.warning("zygote.preload module=%s error=%s: it goes on without", module, reason)
        return self.report

    async def fork(
        self, target: str, payload: dict[str, Any], fds: Sequence[int], log_path: Path, *, timeout: float = 10.0
    ) -> Child:
        """A new child that runs ``pkg.mod:func``; stdout and stderr are appended to the log.

        The child gets copies of the descriptors; the caller closes its own. PlatformError where the zygote is gone or
        cannot fork: the caller may ``spawn`` instead.
        """
        if len(fds) > passing.MAX_FDS - 2:
            raise PlatformError(f"{len(fds)} descriptors are more than a child can be handed")
        output = open_log(log_path)
        try:
            payload_fd = passing.payload_file(payload)
            try:
                answer = await self._ask(target, [payload_fd, output, *fds])
            finally:
                os.close(payload_fd)
        finally:
            os.close(output)
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except BaseException as error:
            if not answer.cancel() and not answer.cancelled() and answer.exception() is None:
                answer.result().kill()  # it came at the moment that nobody waited for it any more
            if isinstance(error, TimeoutError):
                raise Deadline(f"the zygote did not fork within {timeout:.0f} s") from error
            raise

    async def stop(self, timeout: float = 5.0) -> None:
        """End the zygote, not its children. Idempotent."""
        self.report = None
        if self._process is None:
            return
        if self._control is not None:
            with contextlib.suppress(OSError):  # it may be gone already
                self._control.shutdown(socket.SHUT_WR)  # it ends at that; what it still has to tell can be read
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._process.wait()
        await self._process.stop(0.5)
        while self._control is not None and self._readable():
            pass
        self._lost("was stopped")
        if self._adopting is not None:
            await self._adopting

    async def _ask(self, target: str, fds: list[int]) -> asyncio.Future[Child]:
        """Send a request; the future is its answer, whoever waits for it."""
        number = next(self._numbers)
        async with self._sending:
            if self._control is None or self.report is None:
                raise PlatformError("the zygote is not running")
            answer: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
            self._pending[number] = (target, answer)
            try:
                await self._send(self._control, {"id": number, "target": target}, fds)
            except BaseException as error:
                self._pending.pop(number, None)
                if isinstance(error, OSError):
                    raise PlatformError(f"the zygote cannot be asked to fork: {error or 'it is stuck'}") from error
                raise
        return answer

    async def _send(self, control: socket.socket, message: dict[str, Any], fds: list[int]) -> None:
        """Once there is room: the zygote may be busy with earlier forks."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return passing.send(control, message, fds)
            except BlockingIOError:
                room = asyncio.Event()
                loop.add_writer(control, room.set)
                try:
                    async with asyncio.timeout(SEND_TIMEOUT):
                        await room.wait()
                finally:
                    loop.remove_writer(control)

    def _readable(self) -> bool:
        """Take a message of the zygote, or its end; False where there was none."""
        assert self._control is not None
        try:
            message, fds = passing.receive(self._control)
        except BlockingIOError:
            return False
        except OSError as error:
            log.error("zygote.message error=%s: it is given up, its children go on", error)
            self._lost("sent what cannot be read")
            return False
        if message is None:
            self._lost("has ended")
            return False
        if "ready" in message:
            self._made_of = passing.read_payload(fds[0])
            if self._ready is not None and not self._ready.done():
                self._ready.set_result(message)
        elif "exited" in message:
            child = self._children.pop(message["exited"], None)
            if child is not None:
                child.ended(ExitStatus.of(message["status"]))
                end_session(child.pid)
        else:
            self._forked(message, fds)
        return True

    def _forked(self, message: dict[str, Any], fds: list[int]) -> None:
        target, answer = self._pending.pop(message["id"])
        if "error" in message:
            if not answer.done():
                answer.set_exception(PlatformError(f"the zygote cannot fork: {message['error']}"))
            return
        child = Child(message["pid"], fds[0], target)
        self._children[child.pid] = child
        if answer.done():  # who asked has given up: nobody would ever stop it
            child.kill()
        else:
            answer.set_result(child)

    def _lost(self, how: str) -> None:
        """No more answers from it: let those who wait know, and watch its children from here."""
        if self._control is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._control)
        self._control.close()
        self._control = None
        error = PlatformError(f"the zygote {how}")
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(PlatformError(f"the zygote {how} before it was ready; see {self._log_path}"))
            self._ready.exception()  # whoever waited may have given up already
        for _, answer in self._pending.values():
            if not answer.done():
                answer.set_exception(error)
        self._pending.clear()
        if self._children:
            self._adopting = loop.create_task(self._adopt(), name="zygote/adopt")

    async def _adopt(self) -> None:
        """Its children become ours when it is gone, and not a moment before: only then can they be waited for."""
        assert self._process is not None
        await self._process.wait()
        children, self._children = self._children, {}
        for child in children.values():
            child.watch(reap)
