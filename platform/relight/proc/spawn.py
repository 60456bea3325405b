"""A child by exec: slower than a fork of the zygote by all its imports, and always possible."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from relight.base.errors import PlatformError
from relight.proc import passing
from relight.proc.child import Child, reap
from relight.proc.target import QUIET


async def spawn(
    target: str,
    payload: dict[str, Any],
    fds: Sequence[int],
    log_path: Path,
    env: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> Child:
    """Run ``pkg.mod:func`` in a process of its own; stdout and stderr are appended to the log.

    The child gets copies of the descriptors, under the same numbers; the caller closes its own. ``env`` is the whole
    environment (None: this process's). PlatformError where the process cannot be started.
    """
    environ = {**(os.environ if env is None else env), **QUIET}
    log = open_log(log_path)
    try:
        payload_fd = passing.payload_file(payload)
        try:
            argv = [python, "-P", "-m", "relight.proc.exec_main", target, str(payload_fd), ",".join(map(str, fds))]
            process = start(argv, (payload_fd, *fds), environ, log)
        finally:
            os.close(payload_fd)
    finally:
        os.close(log)
    child = own(process, target)
    child.watch(reap)
    return child


def open_log(path: Path) -> int:
    """The log for appending. PlatformError names it where it cannot be opened."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise PlatformError(f"the log {path} cannot be opened: {error.strerror}") from error


def start(argv: list[str], fds: Sequence[int], env: Mapping[str, str], log: int) -> int:
    """Start a program and return its pid, which the caller must ``own`` at once.

    It gets a session of its own: Ctrl-C on the terminal reaches only the platform.
    """
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=fds, env=dict(env), start_new_session=True
        )
    except OSError as error:
        raise PlatformError(f"{argv[0]} cannot be started: {error.strerror}") from error
    process.returncode = 0  # its owner reaps it by a pidfd: Popen must neither do so nor warn that it still runs
    return process.pid


def own(pid: int, target: str) -> Child:
    """Hold a process that was just started."""
    return Child(pid, os.pidfd_open(pid), target)
