"""Object storage in a folder of this machine (``file://``)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from relight.base.errors import Conflict, NoSpace, StoreError
from relight.store.locks import idle
from relight.store.objects import Entry, Listing, clean_key

_PART = ".part"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Files:
    """A folder as object storage.

    An object is written to a ``.part`` file under a name of its own, made durable, and then moved to its place (or
    linked there, when it must not exist yet: ``link`` refuses atomically, on local disks and NFS alike). A reader
    therefore sees the old object, the new one, or none. A part is locked while it is written; one that a killed writer
    left lies where nobody looks, and is removed by the next write in the same top folder.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.uri = self.root.as_uri()
        self.remote = False

    def _path(self, key: str) -> Path:
        return self.root / clean_key(key)

    def list(self, folder: str) -> Listing:
        files, folders = [], []
        try:
            with os.scandir(self._path(folder) if folder else self.root) as found:
                for item in found:
                    try:
                        if item.is_dir():
                            folders.append(item.name)
                        elif item.is_file():
                            stat = item.stat()
                            files.append(Entry(item.name, stat.st_size, _tag(stat)))
                    except FileNotFoundError:  # removed since it was listed
                        continue
        except (FileNotFoundError, NotADirectoryError):
            return Listing((), ())
        except OSError as error:
            raise StoreError(f"cannot list {self.uri}/{folder}: {error.strerror}") from error
        return Listing(tuple(sorted(files, key=lambda entry: entry.name)), tuple(sorted(folders)))

    def place(self, key: str) -> Path | None:
        return self._path(key)

    def size(self, key: str) -> int:
        with self._reading(key):
            return self._path(key).stat().st_size

    def read(self, key: str) -> bytes:
        with self._reading(key):
            return self._path(key).read_bytes()

    def read_into(self, key: str, offset: int, buffer: memoryview, tag: str | None = None) -> int:
        with self._reading(key), open(self._path(key), "rb", buffering=0) as file:
            if tag is not None and _tag(os.fstat(file.fileno())) != tag:
                raise Conflict(f"{self.uri}/{key} is not the file any more that was listed there")
            filled = 0
            while filled < len(buffer) and (read := os.preadv(file.fileno(), [buffer[filled:]], offset + filled)):
                filled += read
            return filled

    @contextlib.contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileNotFoundError(errno.ENOENT, "no such object", f"{self.uri}/{key}") from error
        except OSError as error:
            raise StoreError(f"cannot read {self.uri}/{key}: {error.strerror}") from error

    def put(
        self,
        key: str,
        chunks: Iterable[bytes],
        *,
        create: bool = False,
        size: int | None = None,
        resume: bool = False,
    ) -> None:
        path = self._path(key)
        part = self._parts(key) / f"{secrets.token_hex(8)}{_PART}"
        try:
            with self._new(part) as file:
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
                self._publish(part, path, key, create)
        except OSError as error:
            kind = NoSpace if error.errno in _FULL else StoreError
            raise kind(f"cannot write {self.uri}/{key}: {error.strerror}") from error
        finally:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                part.unlink()
            self._prune(part.parent)
            self._prune(path.parent)

    def holds(self, key: str, chunks: Iterable[bytes], size: int) -> bool:
        with self._reading(key), open(self._path(key), "rb", buffering=0) as file:
            return all(file.read(len(chunk)) == chunk for chunk in chunks) and not file.read(1)

    def _parts(self, key: str) -> Path:
        top, slash, _ = key.partition("/")
        return self.root / (top if slash else "") / ".relight" / "parts"

    def _new(self, part: Path) -> BinaryIO:
        """A new part, locked. Made again if another process pruned its folder, or took it for a dead one, meanwhile."""
        while True:
            self._make(part.parent)
            with contextlib.suppress(FileNotFoundError):
                self._sweep(part.parent)
                file = open(part, "xb")  # noqa: SIM115 - the caller closes it
                fcntl.flock(file, fcntl.LOCK_EX)
                if part.exists():
                    return file
                file.close()

    @staticmethod
    def _sweep(parts: Path) -> int:
        """Remove the parts whose writers are dead."""
        swept = 0
        for other in parts.glob(f"*{_PART}"):
            if lock := idle(other):
                other.unlink(missing_ok=True)
                lock.release()
                swept += 1
        return swept

    def clean(self, older_than: float) -> int:
        """``older_than`` is of no use here: the lock of a part says whether somebody writes it."""
        swept = 0
        for parts in (self.root / ".relight" / "parts", *self.root.glob("*/.relight/parts")):
            swept += self._sweep(parts)
            self._prune(parts)
        return swept

    @staticmethod
    def _make(folder: Path) -> None:
        """Make a folder, while other processes may prune those above it."""
        while not folder.is_dir():
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except FileNotFoundError:
                continue
            except FileExistsError:
                if os.path.lexists(folder) and not folder.is_dir():
                    raise

    def _publish(self, part: Path, path: Path, key: str, create: bool) -> None:
        while True:
            self._make(path.parent)
            try:
                if create:
                    os.link(part, path)
                else:
                    os.replace(part, path)
                break
            except FileExistsError as error:
                raise Conflict(f"{self.uri}/{key} exists already") from error
            except FileNotFoundError:
                if not part.exists():
                    raise
        self._settle(path.parent)

    @staticmethod
    def _settle(folder: Path) -> None:
        """Make a rename in a folder survive a power cut."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def delete(self, key: str) -> None:
        path = self._path(key)
        try:
            path.unlink(missing_ok=True)
        except NotADirectoryError:
            return
        except OSError as error:
            raise StoreError(f"cannot delete {self.uri}/{key}: {error.strerror}") from error
        self._prune(path.parent)

    def _prune(self, folder: Path) -> None:
        """Remove folders that hold nothing any more: to readers they are no folders."""
        while folder != self.root:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent


def _tag(stat: os.stat_result) -> str:
    return f"{stat.st_size:x}-{stat.st_mtime_ns:x}"
