"""Bringing a version's files into a folder: ranged reads at once, each checked before it counts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from relight.base.errors import Conflict, CorruptWeights, MissingWeights
from relight.store.adopting import Adopt, nothing
from relight.store.journal import Journal
from relight.store.keys import Sealer, place
from relight.store.manifest import CHUNK, File, Manifest, Piece, chunk_digest
from relight.store.objects import Objects

THREADS = 8
"""Ranged reads at once: what object storage needs to fill a 10 Gbit/s line; hashing lets go of the GIL. Each thread
holds one chunk, and its plain form where it is encrypted: 128 MiB at most, whatever the size of the model."""

Progress = Callable[[int, int], None]
"""Told of (bytes done, bytes in all); never from two threads at once, and never of less than before."""


class Source:
    """One version in storage: its chunks, read, checked and decrypted."""

    def __init__(
        self, objects: Objects, name: str, version: int, folder: str, manifest: Manifest, sealer: Sealer | None
    ) -> None:
        self.manifest = manifest
        self.uri = f"{objects.uri}/{folder}"
        self._objects = objects
        self._name, self._version, self._folder = name, version, folder
        self._sealer = sealer
        self._buffers = threading.local()

    def read(self, file: File, piece: Piece) -> bytes | memoryview:
        """A chunk as it was pushed. It is good until this thread reads the next one."""
        data = self.read_stored(file, piece)
        if file.nonces is None:
            return data
        assert self._sealer is not None
        where = place(self._name, self._version, file, piece.number)
        return self._sealer.open_chunk(file.nonces[piece.number], data, where, f"{self.uri}/{file.path}")

    def read_stored(self, file: File, piece: Piece) -> memoryview:
        """A chunk as it is stored; CorruptWeights or MissingWeights if that is not what the manifest says."""
        key, uri = f"{self._folder}/{file.path}", f"{self.uri}/{file.path}"
        buffer = self._buffer()[: piece.stored]
        try:
            got = self._objects.read_into(key, piece.stored_at, buffer, file.tag)
        except FileNotFoundError as error:
            raise MissingWeights(f"{uri} is missing: the version's manifest lists it") from error
        except Conflict as error:
            raise CorruptWeights(f"{uri} was changed while it was fetched: fetch it again") from error
        if got != piece.stored:
            raise CorruptWeights(f"{uri} is corrupt: it has {self._size(key)} bytes, its manifest says {file.stored}")
        if file.chunks is not None and chunk_digest(buffer, self.manifest.hash) != file.chunks[piece.number]:
            raise CorruptWeights(
                f"{uri} is corrupt: bytes {piece.stored_at} to {piece.stored_at + piece.stored} do not have the digest "
                "that its manifest gives"
            )
        return buffer

    def place(self, file: File) -> Path | None:
        """Where a file lies, if that is on this machine."""
        return self._objects.place(f"{self._folder}/{file.path}")

    def _buffer(self) -> memoryview:
        if not hasattr(self._buffers, "view"):
            largest = max(piece.stored for file in self.manifest.files for piece in file.pieces())
            self._buffers.view = memoryview(bytearray(largest))
        view: memoryview = self._buffers.view
        return view

    def _size(self, key: str) -> int:
        return self._objects.size(key)


def download(source: Source, target: Path, journal: Journal, on_progress: Progress, adopt: Adopt = nothing) -> Manifest:
    """Write all files of a version into ``target``, whole, checked and durable; returns what they then consist of.

    What ``adopt`` can put into place is not read from storage, if it turns out to be right. Chunks that the journal of
    an earlier try names are read from the disk instead, if they still are. When it fails, what was written until then
    is the caller's to keep for a next try, or to remove.
    """
    manifest, written = source.manifest, journal.written
    digests: list[list[str]] = [[""] * -(-file.size // CHUNK) for file in manifest.files]
    advance = _counting(on_progress, manifest.size)
    adopted = _adopted(manifest, target, adopt)

    def chunk(fd: int, number: int, file: File, piece: Piece) -> None:
        right = file.chunks[piece.number] if file.chunks and file.nonces is None else None
        digest = written.get((number, piece.number))
        if digest is None or digest != (right or digest) or not _still_there(fd, piece, digest, manifest.hash):
            data = source.read(file, piece)
            _write(fd, data, piece.offset)
            digest = right or chunk_digest(data, manifest.hash)
            journal.add(number, piece.number, digest)
        digests[number][piece.number] = digest
        advance(piece.length)

    with ExitStack() as opened:
        jobs = []
        for number, file in enumerate(manifest.files):
            if file.path in adopted:
                digests[number] = list(file.chunks or ())
                advance(file.size)
                continue
            fd = opened.enter_context(_opened(target / file.path, file.size))
            jobs += [(fd, number, file, piece) for piece in file.pieces()]
        in_threads(chunk, jobs)
        for fd in {job[0] for job in jobs}:
            os.fsync(fd)
    files = [
        replace(file, chunks=tuple(found), nonces=None, tag=None)
        for file, found in zip(manifest.files, digests, strict=True)
    ]
    return Manifest.of(files, manifest.hash)


def _adopted(manifest: Manifest, target: Path, adopt: Adopt) -> set[str]:
    """The files that were put into place and are right."""
    found = [
        file
        for file in manifest.files
        if file.chunks and file.nonces is None and not (target / file.path).exists() and adopt(file, target / file.path)
    ]
    wrong: set[str] = set()

    def look(file: File, piece: Piece) -> None:
        assert file.chunks is not None
        with open(target / file.path, "rb", buffering=0) as opened:
            if not _still_there(opened.fileno(), piece, file.chunks[piece.number], manifest.hash):
                wrong.add(file.path)

    in_threads(look, [(file, piece) for file in found for piece in file.pieces()])
    for path in wrong:
        (target / path).unlink()
    return {file.path for file in found} - wrong


def check(source: Source, on_progress: Progress) -> None:
    """Read a whole version in storage and compare its digests; what is encrypted need not be decrypted for that."""
    advance = _counting(on_progress, source.manifest.size)

    def chunk(file: File, piece: Piece) -> None:
        source.read_stored(file, piece)
        advance(piece.length)

    in_threads(chunk, [(file, piece) for file in source.manifest.files for piece in file.pieces()])


def check_folder(folder: Path, manifest: Manifest, on_progress: Progress) -> None:
    """Read files on this disk and compare their digests; CorruptWeights names the first that differs."""
    advance = _counting(on_progress, manifest.size)
    known = {file.path for file in manifest.files}
    strangers = [
        path
        for item in folder.rglob("*")
        if item.is_file() and (path := item.relative_to(folder).as_posix()) not in known
    ]
    if strangers:
        raise CorruptWeights(f"{folder / strangers[0]} does not belong there")

    def chunk(file: File, piece: Piece) -> None:
        assert file.chunks is not None
        path = folder / file.path
        try:
            with open(path, "rb", buffering=0) as opened:
                right = _still_there(opened.fileno(), piece, file.chunks[piece.number], manifest.hash)
        except OSError as error:
            raise CorruptWeights(f"{path} is corrupt: {error.strerror}") from error
        if not right:
            raise CorruptWeights(f"{path} is corrupt: it differs from {piece.offset} to {piece.offset + piece.length}")
        advance(piece.length)

    for file in manifest.files:
        if not (folder / file.path).is_file() or (folder / file.path).stat().st_size != file.size:
            raise CorruptWeights(f"{folder / file.path} is corrupt: it is gone, or has not {file.size} bytes")
    in_threads(chunk, [(file, piece) for file in manifest.files for piece in file.pieces()])


def in_threads(job: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> None:
    """Do a job for each row of arguments, some at once; the first that fails ends it."""
    if len(arguments) <= 1:
        for row in arguments:
            job(*row)
        return
    with ThreadPoolExecutor(min(THREADS, len(arguments)), thread_name_prefix="store") as pool:
        futures = [pool.submit(job, *row) for row in arguments]
        try:
            finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in finished:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _counting(on_progress: Progress, total: int) -> Callable[[int], None]:
    lock, done = threading.Lock(), 0

    def advance(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            on_progress(done, total)

    return advance


@contextmanager
def _opened(path: Path, size: int) -> Iterator[int]:
    """A file of a size that is really there on the disk: a full one is found out now, not after minutes of transfer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        if path.stat().st_nlink > 1:  # adopted by a process that was killed: it is another entry's too
            path.unlink()
        else:
            path.chmod(0o644)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(fd).st_size != size:
            os.ftruncate(fd, 0)
            if size:
                os.posix_fallocate(fd, 0, size)
        yield fd
        os.fchmod(fd, 0o444)
    finally:
        os.close(fd)


def _write(fd: int, data: bytes | memoryview, offset: int) -> None:
    view, written = memoryview(data), 0
    while written < len(view):
        written += os.pwrite(fd, view[written:], offset + written)


def _still_there(fd: int, piece: Piece, digest: str, hash: str) -> bool:
    data = os.pread(fd, piece.length, piece.offset)
    return len(data) == piece.length and chunk_digest(data, hash) == digest
