"""Whether anything of a model has changed in its repository."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from relight.store.repository import Repository, check_name


def fingerprint(repository: Repository, name: str) -> str:
    """A digest of the names, sizes and tags of all files of a model; empty where there are none.

    Half a version changes it, and its other half changes it again: whoever loads the first half tries anew then.
    """
    rows = sorted(_walk(repository, check_name(name)))
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest() if rows else ""


def _walk(repository: Repository, folder: str) -> Iterator[tuple[str, int, str]]:
    listing = repository.objects.list(folder)
    for entry in listing.files:
        yield f"{folder}/{entry.name}", entry.size, entry.tag
    for below in listing.folders:
        yield from _walk(repository, f"{folder}/{below}")
