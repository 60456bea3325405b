"""What a process takes of this machine's memory."""

from __future__ import annotations

import contextlib
import ctypes
import signal
from pathlib import Path

from relight.base.errors import PlatformError

_PR_SET_PDEATHSIG = 1
"""Of linux/prctl.h."""


def resident(pid: int) -> int:
    """Bytes that a process takes: its private pages, and its share of those that others map too (PSS).

    PlatformError where the kernel does not tell.
    """
    path = Path(f"/proc/{pid}/smaps_rollup")
    try:
        for line in path.read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError) as error:
        raise PlatformError(f"the memory of process {pid} cannot be read from {path}: {error}") from error
    raise PlatformError(f"{path} does not say how much memory the process takes")


def die_with_parent() -> None:
    """Have the kernel end this process when the thread that started it is gone, however it went."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def trim() -> None:
    """Give freed memory back to the machine: what was unloaded must not stay with the allocator."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return  # Another C library, which has no such call.
