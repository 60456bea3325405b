"""File locks between processes: ``flock``, which the kernel lets go of when its holder dies.

Lock files are never removed while they may be waited for: a lock on a file that is no longer there guards nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from relight.base.errors import Deadline

_LONGEST_NAP = 0.05
"""Seconds between two tries. A blocking ``flock`` cannot be given a deadline, so a wait is a row of tries."""


class Lock:
    """A lock that is held. It goes with ``release``, or with the process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @property
    def inode(self) -> int:
        return os.fstat(self._fd).st_ino

    def touch(self) -> None:
        """Set the file's time to now."""
        os.utime(self._fd)

    def release(self) -> None:
        """Let go; a second time does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def exclusive(path: Path) -> Lock | None:
    """The exclusive lock of a file, which is made if need be; None if somebody holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return _try(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX)


def idle(path: Path) -> Lock | None:
    """The exclusive lock of a file that exists; None if somebody holds it or it is gone."""
    try:
        return _try(path, os.O_RDONLY, fcntl.LOCK_EX)
    except FileNotFoundError:
        return None


def shared(path: Path, timeout: float) -> Lock | None:
    """The shared lock of a file that exists; None if it is gone, or held exclusively for ``timeout`` seconds."""
    for _ in _tries(timeout):
        try:
            lock = _try(path, os.O_RDONLY, fcntl.LOCK_SH)
            if lock is None:
                continue
            if lock.inode == os.stat(path).st_ino:
                return lock
            lock.release()  # replaced between opening and locking
        except FileNotFoundError:
            return None
    return None


@contextlib.contextmanager
def hold(path: Path, timeout: float, sentence: str, progress: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Hold the exclusive lock of a file; Deadline with ``sentence`` if it is not free within ``timeout`` seconds.

    Whenever ``progress`` returns something else than before, these seconds begin anew: its holder is at work.
    """
    lock, seen = exclusive(path), progress()
    while lock is None:
        for _ in _tries(timeout):
            if (lock := exclusive(path)) or progress() != seen:
                break
        else:
            raise Deadline(f"{sentence} after {timeout:.0f} s")
        seen = progress()
    try:
        yield
    finally:
        lock.release()


def _try(path: Path, flags: int, kind: int) -> Lock | None:
    fd = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return Lock(fd)


def _tries(timeout: float) -> Iterator[None]:
    deadline, nap = time.monotonic() + timeout, 0.001
    while True:
        yield
        left = deadline - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(nap, left))
        nap = min(nap * 2, _LONGEST_NAP)
