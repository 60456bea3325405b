"""What the event log holds, and how it stands in its tables.

An event is there as long as one of its deliveries is: a delivery that is done leaves, and takes the event along when it
was the last. What stays is what is still to do, and what could not be done (dead, with the reason).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from relight.wire.cloudevents import Event

FORMAT = 1
"""Number of the file's layout (``PRAGMA user_version``)."""

SCHEMA = """
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, namespace TEXT NOT NULL, broker TEXT NOT NULL, received REAL NOT NULL,
    id TEXT NOT NULL, source TEXT NOT NULL, type TEXT NOT NULL, attributes BLOB NOT NULL, data BLOB,
    implied_json INTEGER NOT NULL, headers BLOB NOT NULL);
CREATE TABLE deliveries (
    event INTEGER NOT NULL, trigger TEXT NOT NULL, dead INTEGER NOT NULL DEFAULT 0, attempt INTEGER NOT NULL DEFAULT 0,
    due REAL NOT NULL, reason TEXT, destination TEXT, status INTEGER, answer BLOB,
    PRIMARY KEY (event, trigger)) WITHOUT ROWID;
CREATE INDEX deliveries_by_trigger ON deliveries (trigger, event);
"""


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

    @property
    def size(self) -> int:
        return len(self.event.data or b"") + 1024

    def insert(self, database: sqlite3.Connection) -> int:
        """Write the event and its deliveries; its sequence number, which is never used again."""
        event = self.event
        row = (
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
        )
        seq = database.execute(
            "INSERT INTO events"
            " (namespace, broker, received, id, source, type, attributes, data, implied_json, headers)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            row,
        ).lastrowid
        assert seq is not None
        database.executemany(
            "INSERT INTO deliveries (event, trigger, due) VALUES (?, ?, ?)",
            [(seq, trigger, self.received) for trigger in self.triggers],
        )
        return seq


@dataclass(frozen=True, slots=True)
class Stored:
    """An event of the log."""

    seq: int
    namespace: str
    broker: str
    event: Event
    headers: tuple[tuple[str, str], ...]

    @classmethod
    def read(cls, database: sqlite3.Connection, seq: int) -> Stored | None:
        row = database.execute(
            "SELECT namespace, broker, id, source, type, attributes, data, implied_json, headers FROM events"
            " WHERE seq = ?",
            (seq,),
        ).fetchone()
        if row is None:
            return None
        namespace, broker, id_, source, type_, attributes, data, implied_json, headers = row
        event = Event(id_, source, type_, orjson.loads(attributes), data, bool(implied_json))
        return cls(seq, namespace, broker, event, tuple((name, value) for name, value in orjson.loads(headers)))


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
class Dead:
    """A delivery that was given up, with the reason."""

    seq: int
    trigger: str
    id: str
    source: str
    type: str
    status: int | None
    reason: str

    @classmethod
    def read_all(cls, database: sqlite3.Connection, limit: int) -> list[Dead]:
        rows = database.execute(
            "SELECT d.event, d.trigger, e.id, e.source, e.type, d.status, coalesce(d.reason, '') FROM deliveries d"
            " JOIN events e ON e.seq = d.event WHERE d.dead = 1 ORDER BY d.event DESC LIMIT ?",
            (limit,),
        )
        return [cls(*row) for row in rows]


def remove(database: sqlite3.Connection, seq: int, trigger: str) -> None:
    """A delivery is done: it leaves, and the event with it when it was the last."""
    database.execute("DELETE FROM deliveries WHERE event = ? AND trigger = ?", (seq, trigger))
    database.execute(
        "DELETE FROM events WHERE seq = ? AND NOT EXISTS (SELECT 1 FROM deliveries WHERE event = ?)", (seq, seq)
    )


def remove_triggers(database: sqlite3.Connection, keep: Sequence[str]) -> int:
    """Drop the pending deliveries of all Triggers but ``keep``; how many there were. Dead ones stay."""
    marks = ",".join("?" * len(keep))
    found = database.execute(
        f"SELECT event, trigger FROM deliveries WHERE dead = 0 AND trigger NOT IN ({marks})", tuple(keep)
    ).fetchall()
    for seq, trigger in found:
        remove(database, seq, trigger)
    return len(found)
