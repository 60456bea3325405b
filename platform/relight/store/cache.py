"""The node cache: weights on local disk, by content, shared by all processes of the node.

Everything rests on ``flock``. Whoever holds the lock of a digest fetches it; the others wait and then find it there.
Bytes are checked against the manifest's digests before one rename publishes them, so an entry is right or is not there.
Whoever uses an entry holds its lease, and room is made from entries that nobody holds before the first byte is read.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from relight.base.errors import BadInput, NoSpace, StoreError
from relight.store.locks import Lock, hold
from relight.store.manifest import Manifest
from relight.store.repository import Repository, check_name
from relight.store.shelf import Shelf
from relight.store.transfer import download

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REVALIDATE = ("background", "always", "never")


@dataclass
class Fetched:
    """A version's files on this node, held against eviction until ``close``, or until the process ends.

    The garbage collector does not close it: a file that a library opens late must still be there.
    """

    path: Path
    version: int
    digest: str
    hit: bool
    """True: nothing was fetched."""
    lease: Lock = field(repr=False)

    def close(self) -> None:
        self.lease.release()

    def __enter__(self) -> Fetched:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class NodeCache:
    """Fetches versions of models into a folder of this node.

    ``limit_bytes`` bounds what all entries take together; None: as much as the disk has. ``revalidate`` says what is
    read of the repository although it is known here: with ``always`` which version is the latest, and the manifest;
    with ``never`` nothing. ``background`` is as ``never`` for a version that is given by its number (a version does not
    change), and as ``always`` for the latest one: in a folder of this machine that is a matter of microseconds.
    """

    def __init__(self, path: Path | str, limit_bytes: int | None = None, *, revalidate: str = "background") -> None:
        if revalidate not in _REVALIDATE:
            raise BadInput(f"RELIGHT_REVALIDATE: expected {', '.join(_REVALIDATE)}, got {revalidate!r}")
        # The number is the format of the folder: another format lives beside it.
        self.path = Path(path) / "v1"
        self.revalidate = revalidate
        self._shelf = Shelf(self.path, limit_bytes)

    def fetch(
        self,
        repository: Repository,
        name: str,
        version: int | None = None,
        *,
        timeout: float = 600.0,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Fetched:
        """The files of a model's version (None: the latest), from the cache if they are there.

        ``timeout``: seconds to wait for another process that is fetching the same. MissingWeights, CorruptWeights and
        NoSpace leave nothing behind.
        """
        label = f"{repository.uri}/{check_name(name)}"
        try:
            known = self._known(repository, name, version)
            if known is not None:
                return known
            number = repository.latest(name) if version is None else version
            manifest = repository.manifest(name, number)
            label = f"{label}/{number}"
            hit, lease = self._hold(repository, f"{name}/{number}", manifest, timeout, on_progress)
            if manifest.is_checked:
                self._remember(repository, name, number, manifest.digest)
        except OSError as error:
            kind = NoSpace if error.errno in _FULL else StoreError
            raise kind(f"cannot keep {label} in the node cache {self.path}: {error.strerror}") from error
        return Fetched(self._shelf.files(_hex(manifest.digest)), number, manifest.digest, hit, lease)

    def _hold(
        self,
        repository: Repository,
        folder: str,
        manifest: Manifest,
        timeout: float,
        on_progress: Callable[[int, int], None],
    ) -> tuple[bool, Lock]:
        """(it was there, its lease): from the shelf, or fetched under the lock of its digest."""
        digest, label = _hex(manifest.digest), f"{repository.uri}/{folder}"
        if lease := self._shelf.lease(digest):
            return True, lease
        with hold(self._shelf.lock(digest), timeout, f"{label} is still being fetched by another process"):
            hit = True
            while (lease := self._shelf.lease(digest)) is None:  # again only if it is evicted before we hold it
                hit = False
                with self._shelf.fetching(digest, manifest.size, label) as target:
                    download(repository.objects, folder, manifest, target, on_progress)
        return hit, lease

    def _known(self, repository: Repository, name: str, version: int | None) -> Fetched | None:
        """What can be answered without the repository."""
        if self.revalidate == "always" or (version is None and self.revalidate != "never"):
            return None
        refs = self._refs(repository, name)
        with contextlib.suppress(FileNotFoundError, ValueError):
            number = version or max(int(ref) for ref in os.listdir(refs) if ref.isdecimal())
            digest = (refs / str(number)).read_text()
            if lease := self._shelf.lease(_hex(digest)):
                return Fetched(self._shelf.files(_hex(digest)), number, digest, True, lease)
        return None

    def _refs(self, repository: Repository, name: str) -> Path:
        """A folder with a file per known version of a model; it holds the version's digest."""
        return self.path / "refs" / hashlib.sha256(repository.uri.encode()).hexdigest()[:16] / name

    def _remember(self, repository: Repository, name: str, version: int, digest: str) -> None:
        ref = self._refs(repository, name) / str(version)
        with contextlib.suppress(FileNotFoundError):
            if ref.read_text() == digest:
                return
        # Whoever writes it at the same time writes the same bytes.
        part = ref.with_name(f".{version}")
        ref.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(digest)
        with contextlib.suppress(FileNotFoundError):
            os.replace(part, ref)


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")
