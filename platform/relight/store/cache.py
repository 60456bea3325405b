"""The node cache: weights on local disk, by content, shared by all processes of the node.

Everything rests on ``flock``. Whoever holds the lock of a digest fetches it; the others wait and then find it there.
Bytes are checked against the manifest's digests before one rename publishes them, so an entry is right or is not there.
Whoever uses an entry holds its lease, and room is made from entries that nobody holds before the first byte is read.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from relight.base.errors import BadInput, CorruptWeights, NoSpace, StoreError
from relight.base.units import parse_quantity
from relight.store.adopting import first_of, from_entries, from_folder
from relight.store.locks import Lock, hold
from relight.store.repository import Repository, Version, check_name
from relight.store.shelf import Shelf, Shelved
from relight.store.transfer import Progress, check_folder, download

log = logging.getLogger("relight.store")

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REVALIDATE = ("background", "always", "never")


@dataclass
class Fetched:
    """A version's files on this node, held against eviction until ``close``, or until the process ends.

    The garbage collector does not close it: a file that a library opens late must still be there.
    """

    path: Path
    made: Path
    """A folder for what is made of the files on this node (it need not exist yet); it is evicted with them."""
    version: int
    digest: str
    hit: bool
    """True: nothing was fetched."""
    asked: bool
    """Whether the repository was asked for it."""
    lease: Lock = field(repr=False)
    settled: bool = True
    """False: the repository may have something newer; ``NodeCache.revalidate`` asks."""

    def close(self) -> None:
        self.lease.release()

    def __enter__(self) -> Fetched:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@dataclass(frozen=True)
class Entry:
    """One entry of a node cache, and what it is called: names such as ``bert/1``, of all repositories."""

    names: tuple[str, ...]
    shelved: Shelved


@dataclass(frozen=True)
class _Ref:
    """What the node knows of a version: the digest of its content, and whether that can change."""

    version: int
    digest: str
    fixed: bool


class NodeCache:
    """Fetches versions of models into a folder of this node.

    ``limit_bytes`` bounds what all entries take together; None: as much as the disk has. ``revalidate`` says when the
    repository is asked about what is known here:

    * ``background``: a start does not wait for it. The version that was the latest when somebody last asked is used at
      once, and the caller asks afterwards (``revalidate``), so that the next start has what is newer. In a repository
      that is a folder, asking takes microseconds, and is done at once.
    * ``always``: before anything is used.
    * ``never``: only about what is not known here.
    """

    def __init__(self, path: Path | str, limit_bytes: int | None = None, *, revalidate: str = "background") -> None:
        if revalidate not in _REVALIDATE:
            raise BadInput(f"RELIGHT_REVALIDATE: expected {', '.join(_REVALIDATE)}, got {revalidate!r}")
        # The number is the format of the folder: another format lives beside it.
        self.path = Path(path) / "v1"
        self.shelf = Shelf(self.path, limit_bytes)
        self._policy = revalidate

    def fetch(
        self,
        repository: Repository,
        name: str,
        version: int | None = None,
        *,
        timeout: float = 600.0,
        on_progress: Progress = lambda done, total: None,
    ) -> Fetched:
        """The files of a model's version (None: the latest), from the cache if they are there.

        ``timeout``: seconds to wait for another process that is fetching the same, while nothing of it arrives.
        MissingWeights, CorruptWeights and NoSpace leave nothing behind; what arrived before Unreachable waits for the
        next try.
        """
        label = f"{repository.uri}/{check_name(name)}"
        try:
            known = self._known(repository, name, version)
            if known is not None:
                return known
            found = repository.resolve(name, version)
            label = f"{label}/{found.number}"
            hit, lease = self._hold(repository, found, label, timeout, on_progress)
            self._remember(repository, found, latest=version is None)
        except OSError as error:
            kind = NoSpace if error.errno in _FULL else StoreError
            raise kind(f"cannot keep {label} in the node cache {self.path}: {error.strerror}") from error
        return self._fetched(found.number, found.manifest.digest, lease, hit=hit, asked=True, settled=True)

    def revalidate(self, repository: Repository, name: str, version: int | None, fetched: Fetched) -> bool:
        """Ask the repository about what was used unasked; True if it has something else, for the next one to use."""
        found = repository.resolve(name, version)
        self._remember(repository, found, latest=version is None)
        if found.manifest.digest == fetched.digest:
            return False
        log.warning(
            "store.newer uri=%s/%s version=%d: this process goes on with version %d, the next one takes what is newer",
            repository.uri,
            name,
            found.number,
            fetched.version,
        )
        return True

    def entries(self) -> list[Entry]:
        """All there is, the longest unused first."""
        names: dict[str, list[str]] = {}
        for path in sorted(self.path.glob("refs/*/*/*")):
            if path.name.isdecimal() and (ref := _read(path)):
                names.setdefault(_hex(ref.digest), []).append(f"{path.parent.name}/{path.name}")
        return [Entry(tuple(dict.fromkeys(names.get(item.digest, ()))), item) for item in self.shelf.shelved()]

    def verify(self, digest: str, on_progress: Progress = lambda done, total: None) -> None:
        """Read an entry's files and compare their digests; CorruptWeights names the file. ``digest`` in hexadecimal."""
        lease = self.shelf.lease(digest)
        if lease is None:
            raise CorruptWeights(f"{self.shelf.files(digest)} is corrupt: files are gone, or have other sizes")
        try:
            check_folder(self.shelf.files(digest), self.shelf.contents(digest), on_progress)
        except FileNotFoundError as error:
            raise CorruptWeights(f"{error.filename} is gone") from error
        finally:
            lease.release()

    def evict(self, digest: str) -> bool:
        """Remove an entry, or what was fetched of one; False if it is in use, or not there."""
        return self.shelf.evict(digest)

    def _fetched(self, version: int, digest: str, lease: Lock, *, hit: bool, asked: bool, settled: bool) -> Fetched:
        files, made = self.shelf.files(_hex(digest)), self.shelf.made(_hex(digest))
        return Fetched(files, made, version, digest, hit, asked, lease, settled)

    def _hold(
        self, repository: Repository, found: Version, label: str, timeout: float, on_progress: Progress
    ) -> tuple[bool, Lock]:
        """(it was there, its lease): from the shelf, or fetched under the lock of its digest."""
        digest = _hex(found.manifest.digest)
        if lease := self.shelf.lease(digest):
            return True, lease
        sentence = f"{label} is still being fetched by another process, and nothing of it arrives"
        with hold(self.shelf.lock(digest), timeout, sentence, lambda: self.shelf.arrived(digest)):
            hit = True
            while (lease := self.shelf.lease(digest)) is None:  # again only if it is evicted before we hold it
                hit = False
                source = repository.source(found)
                with self.shelf.fetching(digest, found.manifest.size, label) as fetching:
                    adopt = first_of(from_entries(self.shelf.whole(), source.manifest.hash), from_folder(source.place))
                    contents = download(source, fetching.files, fetching.journal, on_progress, adopt)
                    fetching.contents.write_bytes(contents.encode())
        return hit, lease

    def _known(self, repository: Repository, name: str, version: int | None) -> Fetched | None:
        """What can be answered without the repository."""
        refs = self._refs(repository, name)
        ref = _read(refs / str(version or "latest")) or (_newest(refs) if version is None else None)
        if ref is None or self._policy == "always":
            return None
        settled = ref.fixed and version is not None
        if self._policy == "background" and not (settled or repository.objects.remote):
            return None
        if lease := self.shelf.lease(_hex(ref.digest)):
            settled = settled or self._policy == "never"
            return self._fetched(ref.version, ref.digest, lease, hit=True, asked=False, settled=settled)
        return None

    def _refs(self, repository: Repository, name: str) -> Path:
        """A folder with a file per known version of a model, and ``latest``."""
        return self.path / "refs" / hashlib.sha256(repository.uri.encode()).hexdigest()[:16] / name

    def _remember(self, repository: Repository, found: Version, *, latest: bool) -> None:
        """Note what a version holds. The weights are used also where that fails, as on a disk that is full to the last
        block: then the next start asks the repository."""
        manifest = found.manifest
        text = f"{found.number} {manifest.digest} {'fixed' if manifest.is_checked else 'as-listed'}\n"
        refs = self._refs(repository, found.name)
        try:
            for name in (str(found.number), "latest") if latest else (str(found.number),):
                _note(refs / name, text)
        except OSError as error:
            log.warning("cache.not_noted path=%s error=%s: the next start asks the repository", refs, error.strerror)


def _note(path: Path, text: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.read_text() == text:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        part.write_text(text)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def limit_from(environ: Mapping[str, str]) -> int | None:
    """``RELIGHT_CACHE_LIMIT``, a quantity as Kubernetes writes it (``20Gi``), in bytes; None where it is not set."""
    text = environ.get("RELIGHT_CACHE_LIMIT", "")
    if not text:
        return None
    try:
        limit = parse_quantity(text)
    except ValueError:
        limit = 0.0
    if limit < 1:
        raise BadInput(f"RELIGHT_CACHE_LIMIT: expected a quantity of bytes such as 20Gi, got {text!r}")
    return int(limit)


def _read(path: Path) -> _Ref | None:
    try:
        version, digest, kind = path.read_text().split()
        return _Ref(int(version), digest, kind == "fixed")
    except (FileNotFoundError, ValueError):
        return None


def _newest(refs: Path) -> _Ref | None:
    found = [ref for path in refs.glob("*") if path.name.isdecimal() and (ref := _read(path))]
    return max(found, key=lambda ref: ref.version, default=None)


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")
