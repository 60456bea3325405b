"""Files of a version that lie on this node already: put into place as they are, not copied and not fetched.

A file of another entry of the cache is linked: both are read-only, and the bytes are on the disk once. A file of a
repository that is a folder is cloned where the file system shares blocks (Btrfs, XFS): somebody may write to it there,
which a clone does not see. Whoever adopts a file checks its digests, as of every other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from relight.base.errors import RelightError
from relight.store.manifest import File, Manifest

Adopt = Callable[[File, Path], bool]
"""Put a file into place, at a path where there is none yet; False where there is nothing to take."""

_FICLONE = 0x40049409
"""``ioctl``'s number for sharing all blocks of a file (linux/fs.h)."""


def nothing(file: File, path: Path) -> bool:
    return False


def first_of(*ways: Adopt) -> Adopt:
    """The first way that succeeds."""
    return lambda file, path: any(way(file, path) for way in ways)


def from_entries(entries: Iterable[tuple[Path, Manifest]], hash: str) -> Adopt:
    """Links to files of entries: (folder, what its files consist of). ``hash``: of the digests to be compared."""
    known = {
        (file.size, file.chunks): folder / file.path
        for folder, manifest in entries
        if manifest.hash == hash
        for file in manifest.files
        if file.size
    }

    def adopt(file: File, path: Path) -> bool:
        found = known.get((file.size, file.chunks))
        if found is None:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # evicted meanwhile, or a file system without links
            os.link(found, path)
            return True
        return False

    return adopt


def from_folder(place: Callable[[File], Path | None]) -> Adopt:
    """Clones of files; ``place`` says where a file lies on this machine, if it does."""

    def adopt(file: File, path: Path) -> bool:
        try:
            origin = place(file) if file.size else None
        except RelightError:
            return False
        if origin is None:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            clone(origin, path)
        except OSError:  # another file system, or one that cannot
            return False
        return True

    return adopt


def clone(origin: Path, path: Path) -> None:
    """A new, read-only file that shares all blocks of another. OSError where the file system cannot do that."""
    source = os.open(origin, os.O_RDONLY | os.O_CLOEXEC)
    try:
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
        try:
            fcntl.ioctl(target, _FICLONE, source)
            os.fsync(target)
        except BaseException:
            path.unlink()
            raise
        finally:
            os.close(target)
    finally:
        os.close(source)
