"""Room for one more entry in the node cache: found before a byte is fetched, from what nobody uses, or refused."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from relight.base.errors import NoSpace
from relight.base.units import format_bytes
from relight.store.locks import Lock

log = logging.getLogger("relight.store")


@dataclass(frozen=True)
class Held:
    """Something that takes room. ``lock`` gives None while it is in use."""

    path: Path
    size: int
    lock: Callable[[], Lock | None]
    remove: Callable[[], None]


def make_room(limit: int | None, size: int, label: str, path: Path, held: Sequence[Held], there: int) -> None:
    """Remove as many of ``held``, from the first on, as it takes to fit ``size`` more bytes.

    ``there``: bytes on the disk that are already a part of it. NoSpace says what is lacking, and nothing is removed
    then. The caller holds the lock that guards all this.
    """
    if limit is not None and size > limit:
        raise NoSpace(
            f"{label} takes {format_bytes(size)}, and the node cache {path} is limited to {format_bytes(limit)}"
        )
    used = sum(item.size for item in held)
    free = shutil.disk_usage(path).free + there
    chosen: list[tuple[Held, Lock]] = []
    try:
        for item in held:
            if (limit is None or used + size <= limit) and size <= free:
                break
            if lock := item.lock():
                chosen.append((item, lock))
                used, free = used - item.size, free + item.size
        if limit is not None and used + size > limit:
            raise NoSpace(
                f"{label} takes {format_bytes(size)}; of the node cache {path}, limited to {format_bytes(limit)}, "
                f"{format_bytes(used)} are in use"
            )
        if size > free:
            raise NoSpace(
                f"{label} takes {format_bytes(size)}, and the disk of the node cache {path} has "
                f"{format_bytes(free)} free"
            )
        for item, _ in chosen:
            log.info("store.evicted entry=%s bytes=%d: it makes room for %s", item.path, item.size, label)
            item.remove()
    finally:
        for _, lock in chosen:
            lock.release()
