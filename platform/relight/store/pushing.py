"""Storing a version's files, and learning in the same pass what they consist of."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from relight.base.errors import BadInput, Conflict
from relight.store.keys import TAG, Sealer, place
from relight.store.manifest import CHUNK, Encryption, File, Manifest, chunk_digest
from relight.store.objects import Objects
from relight.store.sources import Source
from relight.store.transfer import Progress, in_threads


@dataclass
class _Reading:
    """One file, and what has been learnt of it as it was read."""

    path: str
    origin: Path
    size: int
    chunks: list[str] = field(default_factory=list)
    nonces: list[str] = field(default_factory=list)


class Push:
    """One version on its way into storage; with ``sealer`` it is stored encrypted.

    ``there``: what an earlier push of this version stored before it was cut off. What holds the same bytes stays.
    """

    def __init__(
        self,
        objects: Objects,
        name: str,
        version: int,
        source: Source,
        sealer: Sealer | None,
        on_progress: Progress,
        there: Collection[str] | None = None,
    ) -> None:
        self._objects = objects
        self._name, self._version = name, version
        self._source = source
        self._sealer = sealer
        self._on_progress = on_progress
        self._there = there
        self._counting, self._done = threading.Lock(), 0
        self._files: list[File] = []

    def run(self) -> Manifest:
        """Store all files: small ones several at once, large ones after each other, for storage cuts those in parts."""
        ours = {path for path, _, _ in self._source.files}
        strangers = [path for path in self._there or () if path not in ours]
        in_threads(self._objects.delete, [(f"{self._name}/{self._version}/{path}",) for path in strangers])
        small = [(path, origin, size) for path, origin, size in self._source.files if size <= CHUNK]
        in_threads(self._store, small)
        for path, origin, size in self._source.files:
            if size > CHUNK:
                self._store(path, origin, size)
        manifest = Manifest.of(self._files)
        self._check(manifest)
        if self._sealer is None:
            return manifest
        seal = self._sealer.seal(self._name, self._version, manifest.digest)
        return Manifest(manifest.files, manifest.digest, Encryption(self._sealer.key_id, seal))

    def _store(self, path: str, origin: Path, size: int) -> None:
        key = f"{self._name}/{self._version}/{path}"
        reading = _Reading(path, origin, size)
        if self._there is None or path not in self._there or not self._holds(key, reading):
            reading = _Reading(path, origin, size)
            stored = self._sealed(reading, self._advance)
            self._objects.put(key, stored, size=size, resume=self._there is not None)
        else:
            self._advance(size)
        nonces = tuple(reading.nonces) if self._sealer else None
        self._files.append(File(path, size, tuple(reading.chunks), nonces))

    def _holds(self, key: str, reading: _Reading) -> bool:
        more = TAG * -(-reading.size // CHUNK) if self._sealer else 0
        try:
            return self._objects.holds(key, self._sealed(reading, lambda count: None), reading.size + more)
        except FileNotFoundError:  # it was there when the folder was listed
            return False

    def _sealed(self, reading: _Reading, advance: Callable[[int], None]) -> Iterator[bytes]:
        """The bytes to store. One pass feeds both the digest and the storage: a file that changes meanwhile cannot
        tear them apart."""
        seen = 0
        for data in _chunks(reading.origin):
            seen += len(data)
            stored = data
            if self._sealer is not None:
                where = place(self._name, self._version, (reading.path, reading.size), len(reading.chunks))
                nonce, stored = self._sealer.seal_chunk(data, where)
                reading.nonces.append(nonce)
            reading.chunks.append(chunk_digest(stored))
            yield stored
            advance(len(data))
        if seen != reading.size:
            raise BadInput(f"{reading.origin} was changed while it was pushed: push it again")

    def _advance(self, count: int) -> None:
        with self._counting:
            self._done += count
            self._on_progress(self._done, self._source.size)

    def _check(self, manifest: Manifest) -> None:
        """Never show a version that somebody emptied while it was being pushed."""

        def check(file: File) -> None:
            key = f"{self._name}/{self._version}/{file.path}"
            try:
                size = self._objects.size(key)
            except FileNotFoundError:
                size = -1
            if size != file.stored:
                raise Conflict(f"{self._objects.uri}/{key} was changed by somebody else during the push: push again")

        in_threads(check, [(file,) for file in manifest.files])


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            while data := file.read(CHUNK):
                yield data
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
