"""The folder of the node cache: entries by digest, what is being fetched, and room for more.

::

    entries/DIGEST/files/...     one version's files, read-only, published whole by one rename
    entries/DIGEST/lease         locked (shared) by whoever uses the files; its time is that of the last use
    entries/DIGEST/size          bytes, in decimal
    fetching/DIGEST/...          the same, while it is being fetched: room that is spoken for
    locks/DIGEST, locks/room     locks of one fetch, and of adding up what there is
    trash/                       on its way out
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from relight.base.errors import NoSpace
from relight.base.units import format_bytes
from relight.store.locks import Lock, exclusive, hold, idle, shared

log = logging.getLogger("relight.store")

_MOMENT = 10.0
"""Seconds to wait for a lock that is only ever held for a few system calls."""


class Shelf:
    """Entries of a node cache. ``digest`` is hexadecimal throughout."""

    def __init__(self, path: Path, limit: int | None) -> None:
        self.path = path
        self.limit = limit

    def files(self, digest: str) -> Path:
        return self.path / "entries" / digest / "files"

    def lock(self, digest: str) -> Path:
        """The lock to hold while fetching an entry."""
        return self.path / "locks" / digest

    def lease(self, digest: str) -> Lock | None:
        """Take hold of an entry and mark it as used; None if it is not there, or not whole any more."""
        entry = self.path / "entries" / digest
        lease = shared(entry / "lease", _MOMENT)
        if lease is None:
            return None
        try:
            if _size(entry / "files") == int((entry / "size").read_text()):
                lease.touch()
                return lease
            log.warning("store.torn entry=%s: its files do not have the size they had; it is fetched again", entry)
        except (FileNotFoundError, ValueError):
            log.warning("store.torn entry=%s: a part of it is gone; it is fetched again", entry)
        lease.release()
        return None

    @contextlib.contextmanager
    def fetching(self, digest: str, size: int, label: str) -> Iterator[Path]:
        """Room for an entry of ``size`` bytes: yields the folder to fill, then publishes it. Hold its lock meanwhile.

        NoSpace before anything is fetched if there is no room even without all that is idle. Nothing of it remains
        if the body raises; what a killed process left is removed by the next one that needs room.
        """
        folder = self.path / "fetching" / digest
        with self._adding_up():
            shutil.rmtree(folder, ignore_errors=True)
            self._make_room(size, label)
            (folder / "files").mkdir(parents=True)
            (folder / "size").write_text(str(size))
        try:
            yield folder / "files"
            (folder / "lease").touch(0o644)
            entry = self.path / "entries" / digest
            entry.parent.mkdir(exist_ok=True)
            self._remove(entry)
            os.rename(folder, entry)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def _adding_up(self) -> Iterator[None]:
        with hold(
            self.path / "locks" / "room", _MOMENT, f"the node cache {self.path} is still locked by another process"
        ):
            yield

    def _make_room(self, size: int, label: str) -> None:
        if self.limit is not None and size > self.limit:
            raise NoSpace(
                f"{label} takes {format_bytes(size)}, and the node cache {self.path} is limited to "
                f"{format_bytes(self.limit)}"
            )
        for folder in _folders(self.path / "trash"):
            shutil.rmtree(folder, ignore_errors=True)
        entries = {entry: _number(entry / "size") for entry in _folders(self.path / "entries")}
        used = sum(entries.values()) + self._spoken_for()
        free = shutil.disk_usage(self.path).free
        chosen: list[tuple[Path, Lock]] = []
        try:
            for entry in sorted(entries, key=_last_used):
                if (self.limit is None or used + size <= self.limit) and size <= free:
                    break
                if lease := idle(entry / "lease"):
                    chosen.append((entry, lease))
                    used, free = used - entries[entry], free + entries[entry]
            if self.limit is not None and used + size > self.limit:
                raise NoSpace(
                    f"{label} takes {format_bytes(size)}; of the node cache {self.path}, limited to "
                    f"{format_bytes(self.limit)}, {format_bytes(used)} are in use"
                )
            if size > free:
                raise NoSpace(
                    f"{label} takes {format_bytes(size)}, and the disk of the node cache {self.path} has "
                    f"{format_bytes(free)} free"
                )
            for entry, _ in chosen:
                log.info("store.evicted entry=%s bytes=%d: the least recently used", entry, entries[entry])
                self._remove(entry)
        finally:
            for _, lease in chosen:
                lease.release()

    def _spoken_for(self) -> int:
        """Bytes that others are fetching; what nobody fetches any more is removed."""
        total = 0
        for folder in _folders(self.path / "fetching"):
            if lock := exclusive(self.lock(folder.name)):
                shutil.rmtree(folder, ignore_errors=True)
                lock.release()
            else:
                total += _number(folder / "size")
        return total

    def _remove(self, entry: Path) -> None:
        """Out of the way by one rename, so that no reader finds a half of it; then in peace."""
        trash = self.path / "trash" / secrets.token_hex(8)
        trash.parent.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.rename(entry, trash)
            shutil.rmtree(trash, ignore_errors=True)


def _folders(path: Path) -> list[Path]:
    try:
        return [Path(item.path) for item in os.scandir(path) if item.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (FileNotFoundError, ValueError):
        return 0


def _last_used(entry: Path) -> int:
    try:
        return (entry / "lease").stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _size(folder: Path) -> int:
    total = 0
    for item in os.scandir(folder):
        total += _size(Path(item.path)) if item.is_dir(follow_symlinks=False) else item.stat().st_size
    return total
