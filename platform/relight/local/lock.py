"""One platform per state folder: a lock that dies with its owner."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from relight.base.errors import AlreadyRunning, PlatformError


class FolderLock:
    """An exclusive ``flock`` on a file; the holder's pid is in it, for the message that the next one gets."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def acquire(self) -> None:
        """AlreadyRunning names who has it; PlatformError: the folder cannot be made or written."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise PlatformError(
                f"RELIGHT_HOME: {self._path.parent} is no folder that can be written: {error.strerror}"
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(fd, 32).decode(errors="replace").strip()
            os.close(fd)
            raise AlreadyRunning(
                f"local mode already runs on {self._path.parent} (pid {owner or 'unknown'}): 'relight status' shows "
                f"where, 'relight down' stops it, and RELIGHT_HOME chooses another folder"
            ) from None
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
        self._fd = fd

    @property
    def held(self) -> bool:
        return self._fd is not None

    def release(self) -> None:
        """Idempotent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
