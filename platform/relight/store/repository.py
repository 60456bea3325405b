"""The model repository: Triton's layout in object storage, with versions that never change.

::

    NAME/config.pbtxt
    NAME/VERSION/model.onnx, tokenizer.json, ...
    NAME/VERSION/.relight/claim.json       who pushes this version; written first (``claiming``)
    NAME/VERSION/.relight/manifest.json    what the version is made of; written last: from here on it is seen
    NAME/.relight/model.json               the versions and the digest of config.pbtxt, for readers

The claim makes two pushes at once take two numbers, and it makes half a push invisible: a version that has a
``.relight`` folder but no manifest is not there. The next push goes on with what a dead one left. A version without a
``.relight`` folder was laid there by somebody else's tool and is served as it is, with a warning: what is fetched is
what was listed (size and tag), but nobody knows whether it is what was meant. Files that lie in NAME itself, where
there is no version in a folder, are version 1.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relight.base.errors import BadInput, Conflict, MissingWeights, RelightError, StoreError
from relight.base.ids import digest
from relight.store import claiming, transfer
from relight.store.claiming import META as _META
from relight.store.claiming import Claim
from relight.store.keys import Keys
from relight.store.manifest import FORMAT, Manifest, read_format
from relight.store.objects import Listing, Objects, open_objects
from relight.store.pushing import Push
from relight.store.sources import collect

log = logging.getLogger("relight.store")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_VERSION = re.compile(r"[1-9][0-9]{0,17}")
_CONFIG = "config.pbtxt"


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a model, and the folder of storage where its files are."""

    name: str
    number: int
    folder: str
    manifest: Manifest


class Repository:
    """Models by name and version. Every call reads the storage anew; nothing is kept in memory.

    With ``keys``, what is pushed is stored encrypted, and what was stored with one of them can be read.
    """

    def __init__(self, objects: Objects, keys: Keys | None = None) -> None:
        self.objects = objects
        self.keys = keys or Keys()

    @classmethod
    def open(cls, uri: str, keys: Keys | None = None) -> Repository:
        return cls(open_objects(uri), keys)

    @property
    def uri(self) -> str:
        return self.objects.uri

    # Reading.

    def models(self) -> list[str]:
        """The names of all models that have a version."""
        names = self.folders()
        with ThreadPoolExecutor(transfer.THREADS, thread_name_prefix="list") as pool:
            return [name for name, found in zip(names, pool.map(self.versions, names), strict=True) if found]

    def folders(self) -> list[str]:
        """All that may be a model, such as what a push that was killed left."""
        return [name for name in self.objects.list("").folders if _NAME.fullmatch(name)]

    def versions(self, name: str) -> list[int]:
        """All versions of a model that can be fetched, in order; empty for an unknown model."""
        here = self.objects.list(check_name(name))
        found = [number for number in _numbers(here) if self._is_complete(name, number)]
        return found or ([1] if _is_plain(here) else [])

    def latest(self, name: str) -> int:
        """The newest version; MissingWeights says what there is instead."""
        return self.resolve(name, None).number

    def manifest(self, name: str, version: int) -> Manifest:
        """What a version is made of; MissingWeights says which versions there are."""
        return self.resolve(name, version).manifest

    def resolve(self, name: str, version: int | None) -> Version:
        """A version (None: the latest), in as few calls as there can be; MissingWeights says what there is instead."""
        here = Listing((), ())
        if version is None:
            here = self.objects.list(check_name(name))
        for number in reversed(_numbers(here)) if version is None else (check_version(version),):
            if found := self._version(check_name(name), number):
                return found
        versions = self.versions(name)
        if versions == [1] and version in (None, 1):
            return self._unmanaged(name, 1, name)
        if not versions:
            models = ", ".join(self.models())
            raise MissingWeights(f"there is no model {name!r} in {self.uri}; it has {models or 'no model at all'}")
        have = ", ".join(map(str, versions))
        raise MissingWeights(f"model {name!r} has no version {version} in {self.uri}; it has {have}")

    def source(self, version: Version) -> transfer.Source:
        """A version's bytes; Forbidden if it is encrypted with a key that is not here."""
        sealer, manifest = None, version.manifest
        if manifest.encryption is not None:
            uri = f"{self.uri}/{version.folder}"
            sealer = self.keys.opener(manifest.encryption, uri)
            sealer.check(version.name, version.number, manifest, uri)
        return transfer.Source(self.objects, version.name, version.number, version.folder, manifest, sealer)

    def stored(self, version: Version) -> transfer.Source:
        """A version's bytes as they are stored, for which no key is needed."""
        return transfer.Source(self.objects, version.name, version.number, version.folder, version.manifest, None)

    def model(self, name: str) -> dict[str, Any]:
        """``model.json`` of a model; empty where nobody pushed one."""
        key = f"{check_name(name)}/{_META}/model.json"
        try:
            return read_format(self.objects.read(key), f"{self.uri}/{key}")
        except FileNotFoundError:
            return {}

    def _version(self, name: str, number: int) -> Version | None:
        folder = f"{name}/{number}"
        key = f"{folder}/{_META}/manifest.json"
        try:
            return Version(name, number, folder, Manifest.decode(self.objects.read(key), f"{self.uri}/{key}"))
        except FileNotFoundError:
            return self._unmanaged(name, number, folder) if self._is_unmanaged(folder) else None

    def _unmanaged(self, name: str, number: int, folder: str) -> Version:
        log.warning("store.unchecked uri=%s/%s: it was not pushed by relight, and has no digests", self.uri, folder)
        return Version(name, number, folder, Manifest.listed(f"{self.uri}/{folder}", self._files(folder)))

    def _files(self, folder: str) -> Iterator[tuple[str, int, str]]:
        """(path, size, tag) of what somebody else's tool laid into a version's folder, or into the model's."""
        for path, size, tag in self._walk(folder):
            first, slash, _ = path.partition("/")
            if "/" in folder or not (path == _CONFIG or (slash and (first == _META or _VERSION.fullmatch(first)))):
                yield path, size, tag

    def _is_complete(self, name: str, number: int) -> bool:
        folder = f"{name}/{number}"
        return self._exists(f"{folder}/{_META}/manifest.json") or self._is_unmanaged(folder)

    def _is_unmanaged(self, folder: str) -> bool:
        found = self.objects.list(folder)
        return _META not in found.folders and bool(found.files or found.folders)

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

    # Writing.

    def push(
        self, folder: Path | str, name: str, *, on_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> int:
        """Store a folder, or one file, as the next version of a model and return its number.

        ``on_progress(done, total)`` is told of bytes. When it fails (NoSpace among others) nothing of it remains,
        unless trying again may help: then the next push goes on with what was stored, as it does after a kill.
        """
        check_name(name)
        source = collect(Path(folder))
        sealer = self.keys.sealer() if self.keys else None
        version, claim = self._claim(name)
        there = self._left(f"{name}/{version}") if claim.number else None
        self.sweep(name)
        try:
            manifest = Push(self.objects, name, version, source, sealer, on_progress, there).run()
            if claiming.owner(self.objects, f"{name}/{version}") != claim:
                raise Conflict(f"{self.uri}/{name}/{version} was taken by another push at the same time: push again")
            if source.config is not None:
                self.objects.put(f"{name}/{_CONFIG}", [source.config])
            self.objects.put(f"{name}/{version}/{_META}/manifest.json", [manifest.encode()], create=True)
        except BaseException as error:
            may_help = isinstance(error, KeyboardInterrupt) or (isinstance(error, RelightError) and error.retryable)
            self._leave(f"{name}/{version}", claim, keep=may_help)
            raise
        self._write_model(name)
        return version

    def remove(self, name: str, version: int) -> None:
        """Take a version away, its manifest first. Its number is not used again, for nodes may still know it.

        What runs on it runs on: nodes have their own files. MissingWeights if there is no such version.
        """
        found = self.resolve(name, check_version(version))
        if found.manifest.is_checked:
            claiming.close(self.objects, found.folder)
            self.objects.delete(f"{found.folder}/{_META}/manifest.json")
        paths = [path for path, _, _ in self._files(found.folder)]
        self._delete(found.folder, [path for path in paths if not claiming.is_claim(path)])
        if self.versions(name):
            self._write_model(name)
        else:
            self._delete(name, [_CONFIG, f"{_META}/model.json"])

    def sweep(self, name: str) -> int:
        """Remove what pushes of a model left that were killed, and return how many objects that was.

        Their claims stay: they say that a number was never, or is not any more, a version.
        """
        swept = 0
        for number in _numbers(self.objects.list(check_name(name))):
            folder = f"{name}/{number}"
            if self._exists(f"{folder}/{_META}/manifest.json") or not (left := self._left(folder)):
                continue
            if claiming.take_over(self.objects, folder, removed_too=True) is None:
                continue
            log.info("store.swept uri=%s/%s files=%d: left by a push that was killed", self.uri, folder, len(left))
            self._delete(folder, left)
            swept += len(left)
        return swept

    def _claim(self, name: str) -> tuple[int, Claim]:
        """The number to push as: that of the last push if it is dead and nobody ever saw it, or the next one."""
        here = self.objects.list(name)
        version = max(_numbers(here), default=int(_is_plain(here)))
        folder = f"{name}/{version}"
        unseen = version in _numbers(here) and not self._is_complete(name, version)
        if unseen and (claim := claiming.take_over(self.objects, folder)):
            log.info("store.resumed uri=%s/%s: a push that was cut off goes on", self.uri, folder)
            return version, claim
        while True:
            version += 1
            try:
                return version, claiming.begin(self.objects, f"{name}/{version}")
            except Conflict:  # another push took it since we looked
                continue

    def _left(self, folder: str) -> list[str]:
        """What lies in a version's folder beside its claims."""
        return [path for path, _, _ in self._walk(folder) if not claiming.is_claim(path)]

    def _leave(self, folder: str, claim: Claim, *, keep: bool) -> None:
        """A version that never became visible: taken back, or (``keep``) left to the next push."""
        try:
            if claiming.owner(self.objects, folder) != claim:
                return
            if not keep:
                self._delete(folder, self._left(folder))
            if keep or claim.number:
                claiming.give_up(self.objects, folder, claim)
            else:  # last, for it keeps the number ours
                self.objects.delete(f"{folder}/{_META}/claim.json")
        except (StoreError, FileNotFoundError) as error:
            log.warning("store.leftover uri=%s/%s: %s; the next push takes care of it", self.uri, folder, error)

    def _delete(self, folder: str, paths: list[str]) -> None:
        transfer.in_threads(self.objects.delete, [(f"{folder}/{path}",) for path in paths])

    def _write_model(self, name: str) -> None:
        """Tell readers about the versions.

        Two pushes may write it at once; each looks again after it wrote, so that the last one to write has seen all.
        """
        key = f"{name}/{_META}/model.json"
        written: list[int] | None = None
        while (versions := self.versions(name)) != written:
            try:
                config = digest(self.objects.read(f"{name}/{_CONFIG}"))
            except FileNotFoundError:
                config = None
            value = {"format": FORMAT, "name": name, "versions": versions, "config": config}
            self.objects.put(key, [json.dumps(value, indent=1).encode()])
            written = versions


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


def _numbers(listing: Listing) -> list[int]:
    return sorted(int(folder) for folder in listing.folders if _VERSION.fullmatch(folder))


def _is_plain(listing: Listing) -> bool:
    """Whether files lie in a model's own folder, as tools leave them that know no versions."""
    return 1 not in _numbers(listing) and any(entry.name != _CONFIG for entry in listing.files)
