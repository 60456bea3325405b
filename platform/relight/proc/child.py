"""A child process, as its owner sees it.

It is held by a pidfd, never by its number: a signal can not hit a stranger that got the number after it was free. Who
tells how it ended depends on whose child it is: the platform's own (``spawn``), the zygote's, or one that came to the
platform when its zygote died; ``Child`` is the same for all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

from relight.base.errors import Deadline
from relight.proc.exits import ExitStatus

log = logging.getLogger("relight.proc")

KILL_TIMEOUT = 10.0
"""Seconds that a killed process may take to be gone; only one that hangs in the kernel takes longer."""


class Child:
    """One child. Made by ``Zygote.fork`` and ``spawn``; lives on the loop that made it."""

    def __init__(self, pid: int, pidfd: int, target: str) -> None:
        self.pid = pid
        self.target = target
        self._pidfd = pidfd
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[ExitStatus] = self._loop.create_future()
        self._watched = False

    @property
    def status(self) -> ExitStatus | None:
        """How it ended; None while it runs."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> ExitStatus:
        """Until it has ended. May be called by many, and given up by any."""
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        """Ask it to drain and end (SIGTERM). Nothing happens where it has ended."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        self._signal(signal.SIGKILL)

    async def stop(self, grace: float) -> ExitStatus:
        """SIGTERM, wait for ``grace`` seconds, SIGKILL, wait. Killed too if the caller gives up waiting.

        That one was given no time is nothing to warn of.
        """
        self.terminate()
        try:
            async with asyncio.timeout(grace):  # not wait_for: it forgets a cancellation that comes with the end
                return await self.wait()
        except TimeoutError:
            level = logging.WARNING if grace > 0 else logging.DEBUG
            log.log(level, "child.killed pid=%d target=%s: it did not end within %.1f s", self.pid, self.target, grace)
            self.kill()
        except asyncio.CancelledError:
            self.kill()
            raise
        try:
            async with asyncio.timeout(KILL_TIMEOUT):
                return await self.wait()
        except TimeoutError as error:
            raise Deadline(f"process {self.pid} is not gone {KILL_TIMEOUT:.0f} s after it was killed") from error

    def _signal(self, number: signal.Signals) -> None:
        if not self._ended.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def ended(self, status: ExitStatus) -> None:
        """Told by whoever reaped it."""
        if self._ended.done():
            return
        if self._watched:
            self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._ended.set_result(status)

    def watch(self, reap: Callable[[int, int], ExitStatus]) -> None:
        """Reap it here when it ends: it is this process's child."""
        self._watched = True
        self._loop.add_reader(self._pidfd, lambda: self.ended(reap(self.pid, self._pidfd)))


def reap(pid: int, pidfd: int) -> ExitStatus:
    """The status of a child that has ended, and the end of what it left in its process group.

    A process that is not ours (its zygote died, and this process is not the reaper of orphans) has no status for us.
    """
    try:
        if os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return ExitStatus()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # it is not reaped yet: its number can be no one else's
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return ExitStatus()
    end_session(pid)
    return ExitStatus.of(status)


def reap_alone(pid: int, pidfd: int) -> ExitStatus:
    """The status of a child that has ended; what it left behind goes on. For a zygote, whose children do."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return ExitStatus()
    return ExitStatus.of(status) if ended else ExitStatus()


def end_session(sid: int) -> None:
    """End and reap what a child that has ended left behind: orphans of its session that came to this process.

    They come only to a subreaper, and one level at a time; each one's end looks for the next.
    """
    for pid in _children():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
            if int(stat.rpartition(")")[2].split()[3]) != sid:
                continue
            orphan = Child(pid, os.pidfd_open(pid), "orphan")
        except (OSError, ValueError):
            continue
        orphan.kill()
        orphan.watch(lambda pid, pidfd: _reap_orphan(sid, pid, pidfd))


def _reap_orphan(sid: int, pid: int, pidfd: int) -> ExitStatus:
    status = reap_alone(pid, pidfd)
    end_session(sid)
    return status


def _children() -> list[int]:
    """Processes whose parent is this one, those that nobody here started included."""
    pids: list[int] = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            pids += map(int, Path(f"/proc/self/task/{task}/children").read_text().split())
    return pids
