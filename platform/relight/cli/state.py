"""What local mode leaves for other commands: its status file, and whether the process named there is the one it was."""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from relight.base.errors import Deadline, PlatformError
from relight.base.settings import Home
from relight.cli.exits import NotRunning


@dataclass(frozen=True)
class Platform:
    """A platform that runs: its process and its addresses."""

    pid: int
    started: int
    """Clock ticks from the boot to the start of the process; with the pid it names one process for good."""
    api: str
    functions: str
    broker: str
    kubeconfig: Path
    repository: str
    resources: Mapping[str, int] = field(default_factory=dict)
    """What the machine has: thousandths of a core, bytes, pieces."""
    limits: str = ""
    """How limits of memory and CPU are kept."""


def find_platform(home: Home) -> Platform | None:
    """The platform that runs on a state folder; None where there is none, or only the file of one that was killed."""
    try:
        value = json.loads(home.status.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise PlatformError(f"{home.status} cannot be read: {error}") from None
    try:
        platform = _platform(value, home)
    except (KeyError, TypeError, ValueError) as error:
        raise PlatformError(f"{home.status} is not what `relight up` writes: {error!r}") from None
    return platform if process_start(platform.pid) == platform.started else None


def need_platform(home: Home) -> Platform:
    """As ``find_platform``; NotRunning where there is none."""
    platform = find_platform(home)
    if platform is None:
        raise NotRunning(f"local mode is not running on {home.path}")
    return platform


def _platform(value: Mapping[str, object], home: Home) -> Platform:
    return Platform(
        pid=int(str(value["pid"])),
        started=int(str(value["start_time"])),
        api=str(value["api"]),
        functions=str(value["functions"]).rstrip("/"),
        broker=str(value["broker"]).rstrip("/"),
        kubeconfig=Path(str(value.get("kubeconfig") or home.kubeconfig)),
        repository=str(value["repository"]),
        resources=_amounts(value.get("resources")),
        limits=str(value.get("limits", "")),
    )


def _amounts(value: object) -> dict[str, int]:
    return {str(name): int(count) for name, count in value.items()} if isinstance(value, dict) else {}


def process_start(pid: int) -> int | None:
    """When a process started, in clock ticks since the boot (field 22 of ``/proc/PID/stat``); None: no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in field 2 may hold spaces and parentheses: the fields after its last ")" are counted.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def stop_platform(platform: Platform, timeout: float, *, kill: bool = False) -> bool:
    """SIGTERM, and wait for the process to end; True if it had to be killed (``kill``), Deadline if it may not be.

    A pidfd is what is signalled and waited on: a process that took over the number meanwhile is never touched.
    """
    try:
        handle = os.pidfd_open(platform.pid)
    except ProcessLookupError:
        return False
    try:
        if process_start(platform.pid) != platform.started:
            return False
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        if _ended(handle, timeout):
            return False
        if not kill:
            raise Deadline(f"local mode (pid {platform.pid}) did not end within {timeout:g} s of SIGTERM")
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        if not _ended(handle, timeout):
            raise Deadline(f"local mode (pid {platform.pid}) did not end within {timeout:g} s of SIGKILL")
        return True
    except ProcessLookupError:
        return False
    except PermissionError:
        raise PlatformError(f"local mode (pid {platform.pid}) belongs to another user") from None
    finally:
        os.close(handle)


def _ended(handle: int, timeout: float) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(timeout * 1000))
