"""The folder of the node cache: entries by digest, what is being fetched, and room for more.

::

    entries/DIGEST/files/...     one version's files, read-only, published whole by one rename
    entries/DIGEST/contents      a manifest of these files, to check them by
    entries/DIGEST/lease         locked (shared) by whoever uses the files; its time is that of the last use
    entries/DIGEST/size          bytes, in decimal
    entries/DIGEST/made/...      what was made of the files on this node, such as optimised graphs; goes with them
    fetching/DIGEST/...          the same, while it is being fetched, and ``journal``: room that is spoken for
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
from dataclasses import dataclass
from pathlib import Path

from relight.base.errors import RelightError, StoreError
from relight.store.journal import Journal
from relight.store.locks import Lock, exclusive, hold, idle, shared
from relight.store.manifest import Manifest
from relight.store.room import Held, make_room

log = logging.getLogger("relight.store")

_MOMENT = 10.0
"""Seconds to wait for a lock that is only ever held for a few system calls."""


@dataclass(frozen=True)
class Fetching:
    """A fetch that holds its lock: where to put the files, and what of them is there from an earlier try."""

    files: Path
    journal: Journal
    contents: Path
    """Where the manifest of the files is to be written."""


@dataclass(frozen=True)
class Shelved:
    """An entry, or (``whole`` False) a part of one that somebody fetches or did not fetch to the end."""

    digest: str
    size: int
    made: int
    used: float
    """Unix time of the last use."""
    busy: bool
    whole: bool


class Shelf:
    """Entries of a node cache. ``digest`` is hexadecimal throughout."""

    def __init__(self, path: Path, limit: int | None) -> None:
        self.path = path
        self.limit = limit

    def files(self, digest: str) -> Path:
        return self.path / "entries" / digest / "files"

    def made(self, digest: str) -> Path:
        """A folder for what is made of an entry's files; it counts as a part of the entry."""
        return self.path / "entries" / digest / "made"

    def contents(self, digest: str) -> Manifest:
        """What the files of an entry consist of; FileNotFoundError where there is no entry."""
        path = self.path / "entries" / digest / "contents"
        return Manifest.decode(path.read_bytes(), path.as_uri())

    def whole(self) -> Iterator[tuple[Path, Manifest]]:
        """The files' folder of each entry, and what they consist of."""
        for entry in folders(self.path / "entries"):
            with contextlib.suppress(FileNotFoundError, StoreError):  # evicted meanwhile, or of another format
                yield entry / "files", self.contents(entry.name)

    def lock(self, digest: str) -> Path:
        """The lock to hold while fetching an entry."""
        return self.path / "locks" / digest

    def arrived(self, digest: str) -> int:
        """A number that grows while an entry is being fetched."""
        try:
            return (self.path / "fetching" / digest / "journal").stat().st_size
        except OSError:
            return -1

    def lease(self, digest: str) -> Lock | None:
        """Take hold of an entry and mark it as used; None if it is not there, or not whole any more."""
        entry = self.path / "entries" / digest
        lease = shared(entry / "lease", _MOMENT)
        if lease is None:
            return None
        try:
            if measure(entry / "files") == int((entry / "size").read_text()):
                lease.touch()
                return lease
            log.warning("store.torn entry=%s: its files do not have the size they had; it is fetched again", entry)
        except (FileNotFoundError, ValueError):
            log.warning("store.torn entry=%s: a part of it is gone; it is fetched again", entry)
        lease.release()
        return None

    @contextlib.contextmanager
    def fetching(self, digest: str, size: int, label: str) -> Iterator[Fetching]:
        """Room for an entry of ``size`` bytes: yields the folder to fill, then publishes it. Hold its lock meanwhile.

        NoSpace before anything is fetched if there is no room even without all that is idle. What a killed process
        left is taken over. Nothing remains if the body raises, except where trying again may help: then it stays for
        the next try, as long as nobody needs the room.
        """
        folder = self.path / "fetching" / digest
        with self.adding_up():
            if _number(folder / "size") != size:
                shutil.rmtree(folder, ignore_errors=True)
            make_room(self.limit, size, label, self.path, self._held(without=digest), _allocated(folder))
            (folder / "files").mkdir(parents=True, exist_ok=True)
            (folder / "size").write_text(str(size))
        keep = False
        try:
            journal = Journal(folder / "journal")
            try:
                yield Fetching(folder / "files", journal, folder / "contents")
            finally:
                journal.close()
            (folder / "journal").unlink()
            (folder / "lease").touch(0o644)
            entry = self.path / "entries" / digest
            entry.parent.mkdir(exist_ok=True)
            self._remove(entry)
            os.rename(folder, entry)
        except (RelightError, KeyboardInterrupt) as error:
            keep = isinstance(error, KeyboardInterrupt) or error.retryable
            raise
        finally:
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)

    def shelved(self) -> list[Shelved]:
        """All there is, the longest unused first."""
        found = []
        for entry in folders(self.path / "entries"):
            lease = idle(entry / "lease")
            if lease:
                lease.release()
            size, used = _number(entry / "size"), _changed(entry / "lease")
            found.append(Shelved(entry.name, size, measure(entry / "made"), used, lease is None, True))
        for folder in folders(self.path / "fetching"):
            lock = exclusive(self.lock(folder.name))
            if lock:
                lock.release()
            used = _changed(folder / "journal")
            found.append(Shelved(folder.name, _number(folder / "size"), 0, used, lock is None, False))
        return sorted(found, key=lambda item: item.used)

    def evict(self, digest: str) -> bool:
        """Remove an entry, or what was fetched of one; False if it is in use, or not there."""
        with self.adding_up():
            for held in self._held():
                if held.path.name == digest and (lock := held.lock()):
                    held.remove()
                    lock.release()
                    return True
        return False

    @contextlib.contextmanager
    def adding_up(self) -> Iterator[None]:
        with hold(
            self.path / "locks" / "room", _MOMENT, f"the node cache {self.path} is still locked by another process"
        ):
            yield

    def _held(self, without: str = "") -> list[Held]:
        """What takes room, in the order in which it can be spared: parts nobody fetches on, then the longest unused."""
        for folder in folders(self.path / "trash"):
            shutil.rmtree(folder, ignore_errors=True)
        parts = [
            Held(
                folder,
                _number(folder / "size"),
                lambda folder=folder: exclusive(self.lock(folder.name)),  # type: ignore[misc]
                lambda folder=folder: shutil.rmtree(folder, ignore_errors=True),  # type: ignore[misc]
            )
            for folder in sorted(folders(self.path / "fetching"), key=lambda folder: _changed(folder / "journal"))
            if folder.name != without
        ]
        entries = [
            Held(
                entry,
                _number(entry / "size") + measure(entry / "made"),
                lambda entry=entry: idle(entry / "lease"),  # type: ignore[misc]
                lambda entry=entry: self._remove(entry),  # type: ignore[misc]
            )
            for entry in sorted(folders(self.path / "entries"), key=lambda entry: _changed(entry / "lease"))
        ]
        return parts + entries

    def _remove(self, entry: Path) -> None:
        """Out of the way by one rename, so that no reader finds a half of it; then in peace."""
        trash = self.path / "trash" / secrets.token_hex(8)
        trash.parent.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.rename(entry, trash)
            shutil.rmtree(trash, ignore_errors=True)


def folders(path: Path) -> list[Path]:
    """The folders in a folder; none where that is not there."""
    try:
        with os.scandir(path) as found:
            return [Path(item.path) for item in found if item.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def measure(folder: Path) -> int:
    """Bytes of all files below a folder; 0 where it is not there."""
    total = 0
    try:
        with os.scandir(folder) as found:
            for item in found:
                total += measure(Path(item.path)) if item.is_dir(follow_symlinks=False) else item.stat().st_size
    except FileNotFoundError:
        return total
    return total


def _allocated(folder: Path) -> int:
    return sum(item.stat().st_blocks * 512 for item in folder.rglob("*") if item.is_file())


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (FileNotFoundError, ValueError):
        return 0


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime_ns / 1e9
    except FileNotFoundError:
        return 0.0
