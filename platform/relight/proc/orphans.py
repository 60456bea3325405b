"""Orphans: processes whose parent has ended before them.

As subreaper a platform becomes the parent of its children's children when those between are gone. That is what lets
replicas outlive their zygote: they are reaped, and their status is known, as if nothing had happened.
"""

from __future__ import annotations

import ctypes
import os

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Make this process the parent of its orphaned descendants (``prctl(2)``). For entry points only."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"this process can not become a subreaper: {os.strerror(code)}")
