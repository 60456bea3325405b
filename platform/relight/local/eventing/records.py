"""What the event log holds, and how it stands in its tables.

An event is there as long as one of its deliveries is: a delivery that is done leaves, and takes the event along when it
was the last. What stays is what is still to do, what could not be done (dead, with the reason), and, as a bounded
history, one hop per delivery that was done: who got which event when, after how many tries, and what it answered.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from relight.wire.cloudevents import Event

FORMAT = 2
"""Number of the file's layout (``PRAGMA user_version``)."""

SCHEMA = """
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, namespace TEXT NOT NULL, broker TEXT NOT NULL, received REAL NOT NULL,
    id TEXT NOT NULL, source TEXT NOT NULL, type TEXT NOT NULL, attributes BLOB NOT NULL, data BLOB,
    implied_json INTEGER NOT NULL, headers BLOB NOT NULL, cause INTEGER);
CREATE TABLE deliveries (
    event INTEGER NOT NULL, trigger TEXT NOT NULL, dead INTEGER NOT NULL DEFAULT 0, attempt INTEGER NOT NULL DEFAULT 0,
    due REAL NOT NULL, reason TEXT, destination TEXT, status INTEGER, answer BLOB, tries TEXT, name TEXT,
    PRIMARY KEY (event, trigger)) WITHOUT ROWID;
CREATE INDEX deliveries_by_trigger ON deliveries (trigger, event);
"""
MIGRATIONS = {
    1: """
ALTER TABLE events ADD COLUMN cause INTEGER;
ALTER TABLE deliveries ADD COLUMN tries TEXT;
ALTER TABLE deliveries ADD COLUMN name TEXT;
""",
}
"""From each older layout to the next; then ``ADDED``, which every layout since 2 has."""
ADDED = """
CREATE INDEX IF NOT EXISTS dead_deliveries ON deliveries (due) WHERE dead = 1;
CREATE TABLE IF NOT EXISTS hops (
    number INTEGER PRIMARY KEY AUTOINCREMENT, event INTEGER NOT NULL, cause INTEGER, trigger TEXT NOT NULL,
    name TEXT NOT NULL, namespace TEXT NOT NULL, broker TEXT NOT NULL, id TEXT NOT NULL, source TEXT NOT NULL,
    type TEXT NOT NULL, digest TEXT NOT NULL, trace TEXT, received REAL NOT NULL, began REAL NOT NULL,
    ended REAL NOT NULL, attempts INTEGER NOT NULL, outcome TEXT NOT NULL, status INTEGER, tries TEXT,
    reply_id TEXT, reply_type TEXT);
CREATE INDEX IF NOT EXISTS hops_by_id ON hops (id);
CREATE TABLE IF NOT EXISTS cursors (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
TRIES_LENGTH = 4000
"""Characters of a delivery's history of failures; what comes after that is only counted."""


@dataclass(frozen=True, slots=True)
class Letter:
    """Why a delivery goes to the dead-letter sink: where it could not go, the last status, the answer's beginning."""

    destination: str
    status: int | None
    answer: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Incoming:
    """An event on its way into the log, with the Triggers (by uid) that want it."""

    namespace: str
    broker: str
    event: Event
    triggers: tuple[str, ...]
    headers: tuple[tuple[str, str], ...] = ()
    """HTTP headers that travel with it (tracing)."""
    received: float = 0.0
    """Seconds since 1970."""
    cause: int | None = None
    """Sequence number of the event that this one is the reply to."""

    @property
    def size(self) -> int:
        return len(self.event.data or b"") + 1024

    def insert(self, database: sqlite3.Connection) -> int:
        """Write the event and its deliveries; its sequence number, which is never used again."""
        return insert_all(database, [self])[0]

    def _row(self, seq: int) -> tuple[object, ...]:
        event = self.event
        return (
            seq,
            self.namespace,
            self.broker,
            self.received,
            event.id,
            event.source,
            event.type,
            orjson.dumps(event.attributes),
            event.data,
            event.implied_json,
            orjson.dumps(self.headers),
            self.cause,
        )


ROWS = 64
"""Rows of one INSERT at most."""
_INTO_EVENTS = (
    "INSERT INTO events (seq, namespace, broker, received, id, source, type, attributes, data, implied_json, headers,"
    " cause) VALUES "
)


def insert_all(database: sqlite3.Connection, incoming: Sequence[Incoming]) -> list[int]:
    """Write events and their deliveries; the events' sequence numbers, which are never used again.

    Many rows to a statement: each one costs a hand-over of the interpreter's lock, for which the thread that accepts
    events has to be waited for.
    """
    found = database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
    first = (0 if found is None else found[0]) + 1
    seqs = list(range(first, first + len(incoming)))
    _insert(database, _INTO_EVENTS, [one._row(seq) for seq, one in zip(seqs, incoming, strict=True)])
    deliveries = [
        (seq, trigger, one.received) for seq, one in zip(seqs, incoming, strict=True) for trigger in one.triggers
    ]
    _insert(database, "INSERT INTO deliveries (event, trigger, due) VALUES ", deliveries)
    return seqs


def _insert(database: sqlite3.Connection, into: str, rows: Sequence[tuple[object, ...]]) -> None:
    for at in range(0, len(rows), ROWS):
        part = rows[at : at + ROWS]
        marks = f"({','.join('?' * len(part[0]))})"
        database.execute(into + ",".join([marks] * len(part)), [value for row in part for value in row])


_EVENT = (
    "e.seq, e.namespace, e.broker, e.id, e.source, e.type, e.attributes, e.data, e.implied_json, e.headers,"
    " e.received, e.cause"
)


@dataclass(frozen=True, slots=True)
class Stored:
    """An event of the log."""

    seq: int
    namespace: str
    broker: str
    event: Event
    headers: tuple[tuple[str, str], ...]
    received: float = 0.0
    cause: int | None = None

    @classmethod
    def of(cls, seq: int, incoming: Incoming) -> Stored:
        return cls(
            seq,
            incoming.namespace,
            incoming.broker,
            incoming.event,
            incoming.headers,
            incoming.received,
            incoming.cause,
        )

    @classmethod
    def of_row(cls, row: Sequence[object]) -> Stored:
        """From the columns of ``_EVENT``."""
        seq, namespace, broker, id_, source, type_, attributes, data, implied_json, headers, received, cause = row
        event = Event(id_, source, type_, orjson.loads(attributes), data, bool(implied_json))  # type: ignore[arg-type]
        pairs = tuple((name, value) for name, value in orjson.loads(headers))  # type: ignore[arg-type]
        return cls(seq, namespace, broker, event, pairs, received, cause)  # type: ignore[arg-type]

    @classmethod
    def read(cls, database: sqlite3.Connection, seq: int) -> Stored | None:
        row = database.execute(f"SELECT {_EVENT} FROM events e WHERE e.seq = ?", (seq,)).fetchone()
        return None if row is None else cls.of_row(row)

    @classmethod
    def read_pending(cls, database: sqlite3.Connection, trigger: str) -> list[Stored]:
        """The events, without their data, that are pending for a Trigger."""
        columns = _EVENT.replace("e.data", "NULL")
        rows = database.execute(
            f"SELECT {columns} FROM deliveries d JOIN events e ON e.seq = d.event WHERE d.trigger = ? AND d.dead = 0",
            (trigger,),
        )
        return [cls.of_row(row) for row in rows]

    @property
    def trace(self) -> str | None:
        """The trace id, of the HTTP header or the distributed tracing extension; None where there is neither."""
        for name, value in self.headers:
            if name == "traceparent":
                return _trace_id(value)
        given = self.event.get("traceparent")
        return None if given is None else _trace_id(str(given))


def _trace_id(traceparent: str) -> str | None:
    parts = traceparent.split("-")
    return parts[1] if len(parts) >= 4 and len(parts[1]) == 32 else None


@dataclass(frozen=True, slots=True)
class Pending:
    """A delivery that is still to do. ``due`` is in seconds since 1970; ``letter`` where the sink's turn has come."""

    seq: int
    trigger: str
    attempt: int
    due: float
    letter: Letter | None

    @classmethod
    def read_all(cls, database: sqlite3.Connection) -> list[Pending]:
        rows = database.execute(
            "SELECT event, trigger, attempt, due, destination, status, answer, reason FROM deliveries WHERE dead = 0"
            " ORDER BY event"
        )
        return [
            cls(
                seq,
                trigger,
                attempt,
                due,
                None if destination is None else Letter(destination, status, answer or b"", reason or ""),
            )
            for seq, trigger, attempt, due, destination, status, answer, reason in rows
        ]


@dataclass(frozen=True, slots=True)
class Entry:
    """A delivery with its event, for people: one that is pending, or one that was given up."""

    stored: Stored
    trigger: str
    name: str | None
    """Of the Trigger, where the delivery is dead: the Trigger may be gone by now."""
    dead: bool
    attempt: int
    at: float
    """Seconds since 1970: when the next attempt is due, or when it was given up."""
    status: int | None
    reason: str
    tries: str

    @property
    def seq(self) -> int:
        return self.stored.seq

    @property
    def id(self) -> str:
        return self.stored.event.id

    @classmethod
    def read(cls, database: sqlite3.Connection, *, dead: bool, limit: int) -> list[Entry]:
        """Newest first where they are dead, oldest first where they are pending."""
        order = "d.due DESC, d.event DESC" if dead else "d.event"
        rows = database.execute(
            f"SELECT {_EVENT}, d.trigger, d.name, d.dead, d.attempt, d.due, d.status, coalesce(d.reason, ''),"
            " coalesce(d.tries, '') FROM deliveries d JOIN events e ON e.seq = d.event WHERE d.dead = ?"
            f" ORDER BY {order} LIMIT ?",
            (int(dead), limit),
        )
        return [cls._of_row(row) for row in rows]

    @classmethod
    def read_of(cls, database: sqlite3.Connection, seqs: Sequence[int]) -> list[Entry]:
        """All deliveries of some events that are still in the log."""
        marks = ",".join("?" * len(seqs))
        rows = database.execute(
            f"SELECT {_EVENT}, d.trigger, d.name, d.dead, d.attempt, d.due, d.status, coalesce(d.reason, ''),"
            f" coalesce(d.tries, '') FROM deliveries d JOIN events e ON e.seq = d.event WHERE d.event IN ({marks})",
            tuple(seqs),
        )
        return [cls._of_row(row) for row in rows]

    @classmethod
    def _of_row(cls, row: Sequence[object]) -> Entry:
        trigger, name, dead, attempt, at, status, reason, tries = row[12:]
        return cls(Stored.of_row(row[:12]), trigger, name, bool(dead), attempt, at, status, reason, tries)  # type: ignore[arg-type]


def remove(database: sqlite3.Connection, seq: int, trigger: str) -> None:
    """A delivery is done: it leaves, and the event with it when it was the last."""
    database.execute("DELETE FROM deliveries WHERE event = ? AND trigger = ?", (seq, trigger))
    database.execute(
        "DELETE FROM events WHERE seq = ? AND NOT EXISTS (SELECT 1 FROM deliveries WHERE event = ?)", (seq, seq)
    )


def remove_triggers(database: sqlite3.Connection, keep: Sequence[str]) -> int:
    """Drop the pending deliveries of all Triggers but ``keep``; how many there were. Dead ones stay."""
    kept = set(keep)
    found = [
        (seq, trigger)
        for seq, trigger in database.execute("SELECT event, trigger FROM deliveries WHERE dead = 0")
        if trigger not in kept
    ]
    for seq, trigger in found:
        remove(database, seq, trigger)
    return len(found)


def trim_dead(database: sqlite3.Connection, most: int, before: float) -> int:
    """Drop the dead deliveries of before ``before``, and the oldest beyond ``most``; how many there were."""
    (count,) = database.execute("SELECT count(*) FROM deliveries WHERE dead = 1").fetchone()
    found = database.execute(
        "SELECT event, trigger, due FROM deliveries WHERE dead = 1 ORDER BY due LIMIT ?", (max(0, count - most),)
    ).fetchall()
    found += database.execute(
        "SELECT event, trigger, due FROM deliveries WHERE dead = 1 AND due < ?", (before,)
    ).fetchall()
    gone = {(seq, trigger) for seq, trigger, _ in found}
    for seq, trigger in gone:
        remove(database, seq, trigger)
    return len(gone)
