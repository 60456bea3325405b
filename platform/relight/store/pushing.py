"""Storing a version's files, and learning in the same pass what they consist of."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

from relight.base.errors import BadInput, Conflict
from relight.store.keys import Sealer, place
from relight.store.manifest import CHUNK, Encryption, File, Manifest, chunk_digest
from relight.store.objects import Objects
from relight.store.sources import Source
from relight.store.transfer import Progress, in_threads


class Push:
    """One version on its way into storage; with ``sealer`` it is stored encrypted."""

    def __init__(
        self, objects: Objects, name: str, version: int, source: Source, sealer: Sealer | None, on_progress: Progress
    ) -> None:
        self._objects = objects
        self._name, self._version = name, version
        self._source = source
        self._sealer = sealer
        self._on_progress = on_progress
        self._counting, self._done = threading.Lock(), 0
        self._files: list[File] = []

    def run(self) -> Manifest:
        """Store all files: small ones several at once, large ones after each other, for storage cuts those in parts."""
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
        chunks: list[str] = []
        nonces: list[str] = []

        def read() -> Iterator[bytes]:
            # One pass feeds both the digest and the storage: a file that changes meanwhile cannot tear them apart.
            seen = 0
            for data in _chunks(origin):
                seen += len(data)
                stored = data
                if self._sealer is not None:
                    where = place(self._name, self._version, (path, size), len(chunks))
                    nonce, stored = self._sealer.seal_chunk(data, where)
                    nonces.append(nonce)
                chunks.append(chunk_digest(stored))
                yield stored
                self._advance(len(data))
            if seen != size:
                raise BadInput(f"{origin} was changed while it was pushed: push it again")

        self._objects.put(f"{self._name}/{self._version}/{path}", read(), size=size)
        self._files.append(File(path, size, tuple(chunks), tuple(nonces) if self._sealer else None))

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
