"""The model repository: Triton's layout in object storage, with versions that never change.

::

    NAME/config.pbtxt
    NAME/VERSION/model.onnx, tokenizer.json, ...
    NAME/VERSION/.relight/claim.json       who pushes this version; written first, and only once per number
    NAME/VERSION/.relight/manifest.json    what the version is made of; written last: from here on it is seen
    NAME/.relight/model.json               the versions and the digest of config.pbtxt, for readers

The claim makes two pushes at once take two numbers, and it makes half a push invisible: a version that has a
``.relight`` folder but no manifest is not there. A version without a ``.relight`` folder was laid there by somebody
else's tool and is served as it is, unchecked, with a warning.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from relight.base.errors import BadInput, Conflict, MissingWeights, StoreError
from relight.base.ids import digest
from relight.store.manifest import CHUNK, FORMAT, File, Manifest, chunk_digest, read_format
from relight.store.objects import Objects, open_objects
from relight.store.sources import Source, collect

log = logging.getLogger("relight.store")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_VERSION = re.compile(r"[1-9][0-9]{0,17}")
_META = ".relight"
_ABANDONED = 24 * 3600.0
"""Seconds after which a claim of another machine that never became a version is taken for dead: no push takes a day."""


class Repository:
    """Models by name and version. Every call reads the storage anew; nothing is kept in memory."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    @classmethod
    def open(cls, uri: str) -> Repository:
        return cls(open_objects(uri))

    @property
    def uri(self) -> str:
        return self.objects.uri

    def models(self) -> list[str]:
        """The names of all models that have a version."""
        folders = self.objects.list("").folders
        return [name for name in folders if _NAME.fullmatch(name) and self.versions(name)]

    def versions(self, name: str) -> list[int]:
        """All versions of a model that can be fetched, in order; empty for an unknown model."""
        return [number for number in self._numbers(name) if self._is_complete(name, number)]

    def latest(self, name: str) -> int:
        """The newest version; MissingWeights says what there is instead."""
        for number in reversed(self._numbers(name)):
            if self._is_complete(name, number):
                return number
        models = ", ".join(self.models())
        raise MissingWeights(f"there is no model {name!r} in {self.uri}; it has {models or 'no model at all'}")

    def manifest(self, name: str, version: int) -> Manifest:
        """What a version is made of; MissingWeights says which versions there are."""
        folder = f"{check_name(name)}/{check_version(version)}"
        key = f"{folder}/{_META}/manifest.json"
        try:
            return Manifest.decode(self.objects.read(key), f"{self.uri}/{key}")
        except FileNotFoundError:
            pass
        if self._is_complete(name, version):
            log.warning("store.unchecked uri=%s/%s: it was not pushed by relight, and has no digests", self.uri, folder)
            return Manifest.listed(f"{self.uri}/{folder}", self._walk(folder))
        versions = ", ".join(map(str, self.versions(name)))
        if not versions:
            self.latest(name)
        raise MissingWeights(f"model {name!r} has no version {version} in {self.uri}; it has {versions}")

    def push(
        self, folder: Path | str, name: str, *, on_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> int:
        """Store a folder, or one file, as the next version of a model and return its number.

        ``on_progress(done, total)`` is told of bytes. When it fails (NoSpace among others) nothing of it remains.
        """
        check_name(name)
        source = collect(Path(folder))
        self._sweep(name)
        version = self._claim(name)
        try:
            manifest = self._upload(source, f"{name}/{version}", on_progress)
            self._check(manifest, f"{name}/{version}")
            if source.config is not None:
                self.objects.put(f"{name}/config.pbtxt", [source.config])
            self.objects.put(f"{name}/{version}/{_META}/manifest.json", [manifest.encode()], create=True)
        except BaseException:
            self._discard(name, version)
            raise
        self._write_model(name)
        return version

    def _numbers(self, name: str) -> list[int]:
        folders = self.objects.list(check_name(name)).folders
        return sorted(int(folder) for folder in folders if _VERSION.fullmatch(folder))

    def _is_complete(self, name: str, version: int) -> bool:
        found = self.objects.list(f"{name}/{version}")
        if _META not in found.folders:
            return bool(found.files)
        return self._exists(f"{name}/{version}/{_META}/manifest.json")

    def _exists(self, key: str) -> bool:
        try:
            self.objects.size(key)
        except FileNotFoundError:
            return False
        return True

    def _walk(self, folder: str, prefix: str = "") -> Iterator[tuple[str, int, str]]:
        found = self.objects.list(folder)
        for entry in found.files:
            yield prefix + entry.name, entry.size, entry.tag
        for below in found.folders:
            yield from self._walk(f"{folder}/{below}", f"{prefix}{below}/")

    def _claim(self, name: str) -> int:
        version = max(self._numbers(name), default=0)
        while True:
            version += 1
            try:
                self.objects.put(f"{name}/{version}/{_META}/claim.json", [json.dumps(_me()).encode()], create=True)
                return version
            except Conflict:  # another push took it since we looked
                continue

    def _upload(self, source: Source, folder: str, on_progress: Callable[[int, int], None]) -> Manifest:
        done, files = 0, []
        for path, origin in source.files:
            size, chunks = 0, []

            def read(origin: Path = origin) -> Iterator[bytes]:
                # One pass feeds both the digest and the storage: a file that changes meanwhile cannot tear them apart.
                nonlocal done, size
                for data in _chunks(origin):
                    chunks.append(chunk_digest(data))  # noqa: B023 - consumed within this turn of the loop
                    yield data
                    size += len(data)
                    done += len(data)
                    on_progress(done, source.size)

            self.objects.put(f"{folder}/{path}", read())
            files.append(File(path, size, tuple(chunks)))
        return Manifest.of(files)

    def _check(self, manifest: Manifest, folder: str) -> None:
        """Never show a version that somebody emptied while it was being pushed."""
        for file in manifest.files:
            try:
                size = self.objects.size(f"{folder}/{file.path}")
            except FileNotFoundError:
                size = -1
            if size != file.size:
                raise Conflict(
                    f"{self.uri}/{folder}/{file.path} was changed by somebody else during the push: push again"
                )

    def _discard(self, name: str, version: int) -> None:
        """Take back a version that never became visible; the claim goes last, for it keeps the number ours."""
        claim = f"{_META}/claim.json"
        folder = f"{name}/{version}"
        try:
            for path in [path for path, _, _ in self._walk(folder) if path != claim]:
                self.objects.delete(f"{folder}/{path}")
            self.objects.delete(f"{folder}/{claim}")
        except StoreError as error:
            log.warning("store.leftover uri=%s/%s: %s; the next push removes it", self.uri, folder, error)

    def _sweep(self, name: str) -> None:
        """Remove what pushes left that were killed. Their claims stay, so that no number ever comes to life twice."""
        for number in self._numbers(name):
            folder = f"{name}/{number}"
            claim = f"{folder}/{_META}/claim.json"
            if self._exists(f"{folder}/{_META}/manifest.json"):
                continue
            try:
                owner = json.loads(self.objects.read(claim))
            except (FileNotFoundError, ValueError):
                continue
            if not _is_dead(owner):
                continue
            for path in [path for path, _, _ in self._walk(folder)]:
                if f"{folder}/{path}" != claim:
                    log.info("store.swept uri=%s/%s/%s: left by a push that was killed", self.uri, folder, path)
                    self.objects.delete(f"{folder}/{path}")

    def _write_model(self, name: str) -> None:
        """Tell readers about the versions.

        Two pushes may write it at once; each looks again after it wrote, so that the last one to write has seen all.
        """
        key = f"{name}/{_META}/model.json"
        written: list[int] = []
        while (versions := self.versions(name)) != written:
            try:
                config = digest(self.objects.read(f"{name}/config.pbtxt"))
            except FileNotFoundError:
                config = None
            value = {"format": FORMAT, "name": name, "versions": versions, "config": config}
            self.objects.put(key, [json.dumps(value, indent=1).encode()])
            written = versions

    def model(self, name: str) -> dict[str, Any]:
        """``model.json`` of a model; empty where nobody pushed one."""
        key = f"{check_name(name)}/{_META}/model.json"
        try:
            return read_format(self.objects.read(key), f"{self.uri}/{key}")
        except FileNotFoundError:
            return {}


def check_name(name: str) -> str:
    """The name itself, if it can name a model."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadInput(
            f"{name!r} is no name for a model: expected letters, digits, '.', '_' and '-', the first a letter or digit"
        )
    return name


def check_version(version: int) -> int:
    if not isinstance(version, int) or version < 1:
        raise BadInput(f"{version!r} is no version of a model: expected a whole number from 1")
    return version


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            while data := file.read(CHUNK):
                yield data
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error


def _me() -> dict[str, Any]:
    return {"where": _where(), "pid": os.getpid(), "started": _started(os.getpid()), "time": time.time()}


def _is_dead(owner: dict[str, Any]) -> bool:
    if owner.get("where") == _where():
        return _started(int(owner.get("pid", 0))) != owner.get("started")
    return time.time() - float(owner.get("time", 0.0)) > _ABANDONED


def _where() -> str:
    """The machine since its last boot, and the container: a pid means nothing outside of these."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _started(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 if there is none. With the pid it names one process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0
