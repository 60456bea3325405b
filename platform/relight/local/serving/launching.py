"""Starting a replica: its socket, its environment, and a process that is forked or executed.

The platform binds the listen socket, so that the port is known before the process is, and keeps one end of a control
socket: the replica says on it that it is ready, or why it failed; its end of file tells either side that the other
died.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from relight.base.errors import Deadline, LoadFailed, PlatformError
from relight.local.serving.types import Address, RevisionSpec
from relight.local.serving.zygotes import Zygotes
from relight.net.listener import bind
from relight.proc.child import Child
from relight.proc.limiting import Group, Limiter
from relight.proc.spawn import spawn
from relight.proc.zygote_main import POOLS

log = logging.getLogger("relight.local.serving")

TARGET = "relight.runtime.replica:run"
"""What a replica's process runs. Named, not imported: local mode starts functions and speaks to them over HTTP."""


class BackingServices(Protocol):
    async def ensure(self, name: str) -> Mapping[str, str]:
        """Environment that leads to a backing service, which then runs."""


@dataclass
class Launched:
    """A process that was started; not yet ready."""

    child: Child
    address: Address
    control: socket.socket
    decided: float
    """When its start was decided, on the monotonic clock of the machine."""
    environ: Mapping[str, str] = field(default_factory=dict)
    group: Group = field(default_factory=Group)
    """The limits on what it may use."""

    def close(self) -> None:
        """Its process has ended: let go of what was its."""
        self.control.close()
        self.group.close()


@dataclass(frozen=True)
class Ready:
    """What a replica says of itself once it can answer. Phases in seconds, in order; they add up to ready - decided."""

    phases: Mapping[str, float]
    at: float = field(default_factory=time.monotonic)


class Launcher:
    """Starts replicas: forked from a zygote, or executed where there is none."""

    def __init__(self, environ: Mapping[str, str], logs: Path, backing: BackingServices, limiter: Limiter) -> None:
        self._environ = dict(environ)
        self._logs = logs
        self._backing = backing
        self._limiter = limiter
        self.zygotes = Zygotes(logs / "zygote.log")

    def log_path(self, namespace: str, pod: str) -> Path:
        return self._logs / namespace / f"{pod}.log"

    async def launch(self, spec: RevisionSpec, pod: str, granted: Mapping[str, str]) -> Launched:
        """Start a replica's process. ``granted``: environment that says which GPUs are its own; the revision's own
        environment wins. PlatformError when the machine cannot."""
        decided = time.monotonic()
        env = {**self._environ, **granted, **_threads(spec.use.cpu), **spec.env}
        for name in spec.backing:
            env = {**(await self._backing.ensure(name)), **env}
        listener = bind("127.0.0.1", 0)
        ours, theirs = socket.socketpair()
        group = self._limiter.group(spec.use.cpu, spec.use.memory)
        try:
            port = listener.getsockname()[1]
            env["PORT"] = str(port)
            payload: dict[str, Any] = {"source": spec.source, "env": env, "stamps": {"decided": decided}}
            payload["limits"] = dict(group.payload)
            log_path = self.log_path(spec.key.namespace, pod)
            log_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            child = await self._child(spec, payload, [listener.fileno(), theirs.fileno()], log_path)
        except BaseException as error:
            ours.close()
            group.close()
            if isinstance(error, OSError):
                raise PlatformError(f"a replica of {spec.key} could not be started: {error}") from error
            raise
        finally:
            listener.close()
            theirs.close()
        ours.setblocking(False)
        return Launched(child, Address("127.0.0.1", port), ours, decided, env, group)

    async def _child(self, spec: RevisionSpec, payload: dict[str, Any], fds: list[int], log_path: Path) -> Child:
        try:
            zygote = await asyncio.shield(self.zygotes.prepare(spec.preload))
            return await zygote.fork(TARGET, payload, fds, log_path)
        except (PlatformError, Deadline) as error:
            # A machine that cannot fork ahead still serves, only slower.
            log.warning(
                "zygote.failed modules=%s error=%s: the replica is executed instead", ",".join(spec.preload), error
            )
            return await spawn(TARGET, payload, fds, log_path)

    async def stop(self) -> None:
        """End the zygotes. Replicas are stopped before, by their owners."""
        await self.zygotes.stop()
        self._limiter.close()


def _threads(cpu: float | None) -> dict[str, str]:
    """As many threads for libraries as the CPU limit has cores: more would only take turns."""
    return {} if cpu is None else dict.fromkeys(POOLS, str(max(1, math.ceil(cpu))))


async def announcement(launched: Launched, *, on_line: Callable[[Mapping[str, Any]], None] | None = None) -> Ready:
    """Wait until a replica says that it is ready. LoadFailed with its own words, or with how its process ended."""
    reader, writer = await asyncio.open_connection(sock=launched.control.dup())
    try:
        while line := await reader.readline():
            try:
                said = json.loads(line)
            except ValueError:
                log.warning("replica.control unreadable=%r", line[:200])
                continue
            if on_line is not None:
                on_line(said)
            if said.get("event") == "ready":
                return Ready({str(name): float(value) for name, value in (said.get("phases") or {}).items()})
            if said.get("event") == "failed":
                raise LoadFailed(f"{said.get('phase', 'start')} failed: {said.get('error', 'no reason given')}")
        status = await launched.child.wait()
        raise LoadFailed(f"the function's process ended before it was ready: {status}")
    finally:
        writer.close()


def read_tail(path: Path, limit: int = 64 * 1024) -> bytes:
    """The last bytes of a log; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - limit))
            return file.read()
    except FileNotFoundError:
        return b""
