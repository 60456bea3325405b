"""Bringing a version's files into a folder: ranged reads at once, each checked before it is kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Lock

from relight.base.errors import CorruptWeights, MissingWeights
from relight.store.manifest import File, Manifest, chunk_digest
from relight.store.objects import Objects

THREADS = 8
"""Ranged reads at once: what object storage needs to fill a 10 Gbit/s line; SHA-256 lets go of the GIL."""


def download(
    objects: Objects, folder: str, manifest: Manifest, target: Path, on_progress: Callable[[int, int], None]
) -> None:
    """Write all files of ``manifest`` from ``folder`` of the storage into ``target``: whole, checked and durable.

    CorruptWeights or MissingWeights name the file. What was written until then is the caller's to remove.
    """
    counting, done = Lock(), 0

    def chunk(fd: int, file: File, number: int, offset: int, length: int) -> None:
        nonlocal done
        data = _read(objects, f"{folder}/{file.path}", file, number, offset, length)
        written = 0
        while written < length:
            written += os.pwrite(fd, memoryview(data)[written:], offset + written)
        with counting:
            done += length
            on_progress(done, manifest.size)

    opened: list[int] = []
    jobs: list[tuple[int, File, int, int, int]] = []
    try:
        for file in manifest.files:
            path = target / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
            opened.append(fd)
            if file.size:
                os.posix_fallocate(fd, 0, file.size)  # a full disk is found out now, not after minutes of transfer
            jobs += [(fd, file, *piece) for piece in file.ranges()]
        _run(chunk, jobs)
        for fd in opened:
            os.fsync(fd)
    finally:
        for fd in opened:
            os.close(fd)


def _run(chunk: Callable[..., None], jobs: list[tuple[int, File, int, int, int]]) -> None:
    if len(jobs) == 1:
        chunk(*jobs[0])
    if len(jobs) <= 1:
        return
    with ThreadPoolExecutor(min(THREADS, len(jobs)), thread_name_prefix="fetch") as pool:
        futures = [pool.submit(chunk, *job) for job in jobs]
        try:
            finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in finished:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _read(objects: Objects, key: str, file: File, number: int, offset: int, length: int) -> bytes:
    uri = f"{objects.uri}/{key}"
    try:
        data = objects.read(key, offset, length)
    except FileNotFoundError as error:
        raise MissingWeights(f"{uri} is missing: the version's manifest lists it") from error
    if len(data) != length:
        raise CorruptWeights(f"{uri} is corrupt: it has {objects.size(key)} bytes, its manifest says {file.size}")
    if file.chunks is not None and chunk_digest(data) != file.chunks[number]:
        raise CorruptWeights(
            f"{uri} is corrupt: bytes {offset} to {offset + length} do not have the digest that its manifest gives"
        )
    return data
