"""Many operations, one commit: how a group of them is written to the event log's file, and how each hears of it."""

from __future__ import annotations

import itertools
import logging
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relight.base.errors import NoSpace, PlatformError, RelightError
from relight.local.eventing import records
from relight.local.eventing.records import Incoming

log = logging.getLogger("relight.eventing")

WAL_PAGES = 4096
"""Checkpoint when the WAL has this many pages (16 MiB), rather than after a number of commits."""


Told = Callable[[Any, BaseException | None], None]
"""Hears an operation's result, or its error, on the loop once it is on disk."""


@dataclass(slots=True)
class Operation:
    """Something to do in a commit."""

    run: Callable[[sqlite3.Connection], Any]
    told: Told
    incoming: Sequence[Incoming] | None = None
    """Where all there is to do is to store these: such operations, one after another, are run as one."""
    result: Any = None
    error: BaseException | None = None


def open_file(path: Path) -> sqlite3.Connection:
    """The file with its tables, made or brought to this layout. PlatformError if it is no such file, or a newer one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.touch(mode=0o600)
        # A statement per number of rows.
        statements = 4 * records.ROWS
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=statements)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        database.execute(f"PRAGMA wal_autocheckpoint={WAL_PAGES}")
        database.execute(f"PRAGMA journal_size_limit={2 * WAL_PAGES * 4096}")
        (found,) = database.execute("PRAGMA user_version").fetchone()
        if found < records.FORMAT:
            steps = [records.SCHEMA] if found == 0 else [records.MIGRATIONS[at] for at in range(found, records.FORMAT)]
            script = " ".join([*steps, records.ADDED])
            database.executescript(f"BEGIN; {script} PRAGMA user_version={records.FORMAT}; COMMIT;")
    except (sqlite3.DatabaseError, OSError) as error:
        raise PlatformError(f"{path} cannot be read as the platform's event log: {error}") from error
    if found > records.FORMAT:
        database.close()
        raise PlatformError(f"{path} has format {found}; this relight reads up to {records.FORMAT}: update relight")
    return database


def commit(database: sqlite3.Connection, group: list[Operation]) -> None:
    """Run a group in one transaction; if one operation fails, each in one of its own, so that it fails alone."""
    if not group or _try(database, group):
        return
    if len(group) > 1:
        for operation in group:
            operation.error = None
            _try(database, [operation])


def _try(database: sqlite3.Connection, group: list[Operation]) -> bool:
    try:
        database.execute("BEGIN IMMEDIATE")
        for stores, several in itertools.groupby(group, lambda one: one.incoming is not None):
            operations = list(several)
            if stores and len(operations) > 1:
                _store_all(database, operations)
            else:
                for operation in operations:
                    operation.result = operation.run(database)
        database.execute("COMMIT")
    except Exception as error:
        if database.in_transaction:
            database.execute("ROLLBACK")
        for operation in group:
            operation.error = _translate(error)
        return False
    return True


def _store_all(database: sqlite3.Connection, operations: list[Operation]) -> None:
    seqs = iter(records.insert_all(database, [one for each in operations for one in each.incoming or ()]))
    for each in operations:
        each.result = [next(seqs) for _ in each.incoming or ()]


def _translate(error: Exception) -> RelightError:
    if isinstance(error, RelightError):
        return error
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        return NoSpace("the disk that holds the event log is full; the event was not accepted")
    log.error("events.write_failed error=%r: nothing of it was stored, the sender or the retry tries again", error)
    failure = PlatformError("the event log cannot be written")
    failure.__cause__ = error
    return failure


def tell(group: list[Operation]) -> None:
    """Say how it went, on the loop."""
    for operation in group:
        try:
            operation.told(operation.result, operation.error)
        except Exception:
            # What one does with it is no reason for the others not to hear.
            log.exception("events.telling_failed")
