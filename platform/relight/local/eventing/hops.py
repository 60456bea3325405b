"""The history of what was delivered: one hop per delivery that was done, for traces and against second answers."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Literal

from relight.local.eventing.records import Entry, Stored
from relight.wire.cloudevents import Event

Outcome = Literal["done", "sunk", "known"]
"""Answered by the subscriber; taken by the dead-letter sink; not delivered, for it had been answered before."""

MOST = 5000
"""Events of one tree that are told."""
PRUNE = 256
"""Hops between two looks at how many there are."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One delivery that was done. Times in seconds since 1970; ``tries`` tells the attempts that failed before."""

    event: int
    cause: int | None
    trigger: str
    name: str
    namespace: str
    broker: str
    id: str
    source: str
    type: str
    digest: str
    trace: str | None
    received: float
    began: float
    ended: float
    attempts: int
    outcome: Outcome
    status: int | None
    tries: str = ""
    reply_id: str | None = None
    reply_type: str | None = None

    @classmethod
    def of(
        cls,
        stored: Stored,
        trigger: str,
        name: str,
        *,
        began: float,
        ended: float,
        attempts: int,
        outcome: Outcome,
        status: int | None = None,
        reply: Event | None = None,
    ) -> Hop:
        event = stored.event
        return cls(
            stored.seq,
            stored.cause,
            trigger,
            name,
            stored.namespace,
            stored.broker,
            event.id,
            event.source,
            event.type,
            event.digest(),
            stored.trace,
            stored.received,
            began,
            ended,
            attempts,
            outcome,
            status,
            "",
            None if reply is None else reply.id,
            None if reply is None else reply.type,
        )

    def insert(self, database: sqlite3.Connection, keep: int) -> None:
        """Write it, with the tries that the delivery tells; beyond ``keep`` the oldest hops go."""
        row = (
            self.event,
            self.cause,
            self.trigger,
            self.name,
            self.namespace,
            self.broker,
            self.id,
            self.source,
            self.type,
            self.digest,
            self.trace,
            self.received,
            self.began,
            self.ended,
            self.attempts,
            self.outcome,
            self.status,
            self.reply_id,
            self.reply_type,
            self.event,
            self.trigger,
        )
        number = database.execute(
            "INSERT INTO hops (event, cause, trigger, name, namespace, broker, id, source, type, digest, trace,"
            " received, began, ended, attempts, outcome, status, reply_id, reply_type, tries) VALUES"
            " (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,"
            " (SELECT tries FROM deliveries WHERE event = ? AND trigger = ?))",
            row,
        ).lastrowid
        if number is not None and number % PRUNE == 0:
            database.execute("DELETE FROM hops WHERE number <= ?", (number - keep,))


_COLUMNS = (
    "event, cause, trigger, name, namespace, broker, id, source, type, digest, trace, received, began, ended, attempts,"
    " outcome, status, coalesce(tries, ''), reply_id, reply_type"
)


def is_answered(
    database: sqlite3.Connection,
    trigger: str,
    seq: int,
    source: str,
    id_: str,
    digest: str,
    *,
    replied: bool = True,
) -> bool:
    """Whether a Trigger's subscriber has answered this event (``replied``: with an event) under another number."""
    row = database.execute(
        "SELECT 1 FROM hops WHERE id = ? AND source = ? AND trigger = ? AND digest = ? AND event <> ?"
        f" AND outcome = 'done'{' AND reply_id IS NOT NULL' if replied else ''} LIMIT 1",
        (id_, source, trigger, digest, seq),
    ).fetchone()
    return row is not None


def read_tree(database: sqlite3.Connection, wanted: str) -> tuple[list[Hop], list[Entry]]:
    """All that belongs to an event's id, or to a trace id: the chains it stands in, from their first events on."""
    links: dict[int, int | None] = dict(database.execute("SELECT event, cause FROM hops"))
    links |= dict(database.execute("SELECT seq, cause FROM events"))
    found = {
        seq
        for (seq,) in database.execute(
            "SELECT event FROM hops WHERE id = ? OR trace = ? UNION SELECT seq FROM events WHERE id = ?",
            (wanted, wanted, wanted),
        )
    }
    # An event that nobody wanted is not in the log; the hop that it came from knows its id.
    found |= {seq for (seq,) in database.execute("SELECT event FROM hops WHERE reply_id = ?", (wanted,))}
    found |= {
        stored.seq
        for stored in map(
            Stored.of_row,
            database.execute(
                "SELECT seq, namespace, broker, id, source, type, attributes, NULL, implied_json, headers, received,"
                " cause FROM events WHERE instr(headers, ?) OR instr(attributes, ?)",
                (wanted, wanted),
            ),
        )
        if stored.trace == wanted
    }
    roots = {_root(seq, links) for seq in found}
    below: dict[int, list[int]] = {}
    for seq, cause in links.items():
        if cause is not None:
            below.setdefault(cause, []).append(seq)
    members, todo = set(roots), list(roots)
    while todo:
        more = [seq for seq in below.get(todo.pop(), ()) if seq not in members]
        members.update(more)
        todo.extend(more)
    ordered = sorted(members)[:MOST]
    marks = ",".join("?" * len(ordered))
    hops = [
        Hop(*row)
        for row in database.execute(f"SELECT {_COLUMNS} FROM hops WHERE event IN ({marks}) ORDER BY number", ordered)
    ]
    return hops, Entry.read_of(database, ordered)


def _root(seq: int, links: dict[int, int | None]) -> int:
    while True:
        cause = links.get(seq)
        if cause is None or cause not in links:
            return seq
        seq = cause
