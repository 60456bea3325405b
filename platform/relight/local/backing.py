"""Backing services: what functions need besides each other, started the first time one asks, and kept.

Only ``milvus`` so far. Its data stay in the platform's home. It keeps its port from one start to the next, for its
address is in the environment of functions that run: when it died and is back, they find it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relight.base.errors import BadInput, Deadline, PlatformError
from relight.base.tasks import Tasks
from relight.proc.child import Child
from relight.proc.spawn import spawn

log = logging.getLogger("relight.local.backing")

TARGET = "relight.local.milvus:serve"
START_TIMEOUT = 30.0
"""Seconds until it must serve. A quiet machine needs one; a large database is read at the start."""
GRACE = 10.0
"""Seconds from SIGTERM to SIGKILL: twice what it gives to calls in flight."""
RESTART_AFTER, RESTART_AT_MOST = 1.0, 30.0
"""Seconds from its death to a new start; doubled each time that it lived for less than the second of them."""


@dataclass
class _Running:
    child: Child
    port: int
    line: socket.socket
    """Its end tells the child that the platform is gone."""


class Backing:
    """The backing services of one platform. ``logs`` gets a log for each.

    One that dies is started again, ``restart_after`` seconds later: the replicas that use it may live on for days.
    """

    def __init__(self, services: Path, logs: Path, restart_after: float = RESTART_AFTER) -> None:
        self._folder = services / "milvus"
        self._log = logs / "milvus.log"
        self._milvus: _Running | None = None
        self._starting = asyncio.Lock()
        self._stopped = False
        self._restart_after = restart_after
        self._pause = restart_after
        self._tasks = Tasks("backing")

    async def ensure(self, name: str) -> Mapping[str, str]:
        """Have a service running; the environment that leads to it. Who asks at the same time waits for the same start.

        PlatformError or Deadline, with the log's name, where it does not come up.
        """
        if name != "milvus":
            raise BadInput(f"there is no backing service {name!r}; there is milvus")
        async with self._starting:
            if self._stopped:
                raise PlatformError("the platform is stopping")
            if self._milvus is not None and self._milvus.child.status is not None:
                log.warning("backing.died service=milvus status=%s: it is started again", self._milvus.child.status)
                self._forget()
            if self._milvus is None:
                self._milvus = await self._start()
                self._tasks.spawn(self._watch(self._milvus), "milvus")
            return {"MILVUS_URI": f"http://127.0.0.1:{self._milvus.port}"}

    async def stop(self) -> None:
        """End what runs, and wait for it. Idempotent."""
        self._stopped = True
        await self._tasks.stop()
        async with self._starting:
            if self._milvus is not None:
                try:
                    await self._milvus.child.stop(GRACE)
                finally:
                    self._forget()
        await self._tasks.stop()  # of a start that was going on when the first ones were stopped

    async def _watch(self, running: _Running) -> None:
        """Start it again when it has died, unless somebody did meanwhile."""
        begun = asyncio.get_running_loop().time()
        status = await running.child.wait()
        if asyncio.get_running_loop().time() - begun > RESTART_AT_MOST:
            self._pause = self._restart_after
        pause, self._pause = self._pause, max(self._pause, min(2 * self._pause, RESTART_AT_MOST))
        log.warning("backing.died service=milvus status=%s: it is started again in %g s", status, pause)
        await asyncio.sleep(pause)
        if self._milvus is running:
            try:
                await self.ensure("milvus")
            except (PlatformError, Deadline, OSError) as error:
                log.error("backing.not_started service=milvus error=%s: the next function that asks starts it", error)

    def _forget(self) -> None:
        if self._milvus is not None:
            self._milvus.line.close()
            self._milvus = None

    async def _start(self) -> _Running:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        await self._end_stranger()
        begun = asyncio.get_running_loop().time()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            payload: dict[str, Any] = {"folder": str(self._folder / "data"), "port": self._usual_port()}
            try:
                child = await spawn(TARGET, payload, [theirs.fileno()], self._log)
            finally:
                theirs.close()
            try:
                self._remember(child.pid, payload["port"])
                port = await self._port(ours, child)
            except BaseException:
                await child.stop(0.0)
                raise
        except BaseException:
            ours.close()
            raise
        self._remember(child.pid, port)
        seconds = asyncio.get_running_loop().time() - begun
        log.info("backing.ready service=milvus port=%d pid=%d seconds=%.2f", port, child.pid, seconds)
        return _Running(child, port, ours)

    async def _port(self, line: socket.socket, child: Child) -> int:
        """What the child says when it serves."""
        try:
            async with asyncio.timeout(START_TIMEOUT):
                said = b""
                while not said.endswith(b"\n"):
                    more = await asyncio.get_running_loop().sock_recv(line, 4096)
                    if not more:
                        status = await child.wait()
                        raise PlatformError(
                            f"the backing service milvus ended at its start ({status}); see {self._log}"
                        )
                    said += more
        except TimeoutError as error:
            message = f"the backing service milvus does not serve after {START_TIMEOUT:.0f} s; see {self._log}"
            raise Deadline(message) from error
        return int(json.loads(said)["port"])

    @property
    def _state(self) -> Path:
        """JSON: pid, start time and port of the one that runs, or ran last."""
        return self._folder / "server.json"

    def _recorded(self) -> dict[str, int]:
        try:
            value = json.loads(self._state.read_text())
            return {key: int(value[key]) for key in ("pid", "started", "port")}
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return {}

    def _remember(self, pid: int, port: int) -> None:
        partial = self._state.with_suffix(".partial")
        partial.write_text(json.dumps({"pid": pid, "started": _started(pid), "port": port}))
        partial.replace(self._state)

    def _usual_port(self) -> int:
        """The port of last time if nobody has it now, else 0.

        It is tried here, for gRPC shares a port with another listener without a word.
        """
        port = self._recorded().get("port", 0)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return 0
        return port

    async def _end_stranger(self) -> None:
        """End a server of ours on the same data whose platform is gone: it has the database locked."""
        recorded = self._recorded()
        pid = recorded.get("pid", 0)
        if not pid or _started(pid) != recorded["started"]:
            return
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            try:
                for number in (signal.SIGTERM, signal.SIGKILL):
                    log.warning("backing.leftover service=milvus pid=%d signal=%s", pid, number.name)
                    signal.pidfd_send_signal(pidfd, number)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(_ended(pidfd), GRACE)
                        return
                raise PlatformError(f"process {pid}, an earlier milvus on {self._folder}, cannot be ended")
            finally:
                os.close(pidfd)


async def _ended(pidfd: int) -> None:
    """Until a process that is not our child has ended: its pidfd becomes readable."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(pidfd, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(pidfd)


def _started(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 if there is none. With the pid it names one process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0
