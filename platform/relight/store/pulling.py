"""A copy of a version in a folder of one's own: whole and checked, or not there."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from relight.base.errors import Conflict, NoSpace, RelightError, StoreError
from relight.store.adopting import from_folder
from relight.store.journal import Journal
from relight.store.locks import exclusive
from relight.store.repository import Repository, Version
from relight.store.transfer import Progress, download


def pull(repository: Repository, version: Version, target: Path, on_progress: Progress) -> None:
    """Fetch a version into ``target``, which must not exist, or be an empty folder.

    It is fetched beside it, into a hidden folder. What arrived stays there if the way was cut, and the next pull of the
    same goes on with it; any other failure removes it.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Conflict(f"{target} exists: pull into a folder that does not exist yet, or is empty")
    part = target.parent / f".{target.name}.pulling"
    try:
        part.mkdir(parents=True, exist_ok=True)
        lock = exclusive(part / "lock")
        if lock is None:
            raise Conflict(f"another process is pulling into {target}")
        keep = False
        try:
            _fetch(repository, version, part, on_progress)
            if target.exists():
                target.rmdir()
            os.rename(part / "files", target)
        except (RelightError, KeyboardInterrupt) as error:
            keep = isinstance(error, KeyboardInterrupt) or error.retryable
            raise
        finally:
            if not keep:
                shutil.rmtree(part, ignore_errors=True)
            lock.release()
    except OSError as error:
        kind = NoSpace if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else StoreError
        raise kind(f"cannot write to {target}: {error.strerror}") from error


def _fetch(repository: Repository, version: Version, part: Path, on_progress: Progress) -> None:
    manifest, files, digest = version.manifest, part / "files", part / "digest"
    if not digest.exists() or digest.read_text() != manifest.digest:
        shutil.rmtree(files, ignore_errors=True)
        (part / "journal").unlink(missing_ok=True)
        digest.write_text(manifest.digest)
    files.mkdir(exist_ok=True)
    journal = Journal(part / "journal")
    try:
        source = repository.source(version)
        download(source, files, journal, on_progress, from_folder(source.place))
    finally:
        journal.close()
    for file in manifest.files:
        (files / file.path).chmod(0o644)
