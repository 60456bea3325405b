"""What a claim on a version's number says: which process made it, and so whether that is still at work.

It tells the half of a push that was killed, with which somebody may go on, from one that goes on by itself.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from pathlib import Path
from typing import Any

ABANDONED = 24 * 3600.0
"""Seconds after which a claim of another machine that never became a version is taken for dead: no push takes a day."""


def new(*, given_up: bool = False, removed: bool = False) -> bytes:
    """A claim of this process, unlike any other.

    ``given_up``: as if the process were dead. ``removed``: the version was there, and was taken away.
    """
    me = os.getpid()
    value = {
        "where": _where(),
        "pid": me,
        "started": _started(me),
        "time": time.time(),
        "token": secrets.token_hex(8),
    }
    if given_up:
        value["given_up"] = True
    if removed:
        value["removed"] = True
    return json.dumps(value).encode()


def is_dead(claim: bytes) -> bool:
    """Whether the process that wrote a claim is gone; ValueError for what is no claim."""
    owner = json.loads(claim)
    if not isinstance(owner, dict):
        raise ValueError("no claim")
    return _is_dead(owner)


def says_removed(claim: bytes) -> bool:
    return bool(json.loads(claim).get("removed"))


def _is_dead(owner: dict[str, Any]) -> bool:
    if owner.get("given_up"):
        return True
    if owner.get("where") == _where():
        return _started(int(owner.get("pid", 0))) != owner.get("started")
    return time.time() - float(owner.get("time", 0.0)) > ABANDONED


def _where() -> str:
    """The machine since its last boot, and the container: a pid means nothing outside of these."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _started(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 if there is none. With the pid it names one process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0
