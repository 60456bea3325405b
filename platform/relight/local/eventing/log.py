"""The durable event log: what was accepted and is not delivered yet.

One SQLite file of its own (WAL, ``synchronous=FULL``), written by one thread, so that the disk never holds up the event
loop. All that waits is committed together: under load one fsync serves many events. Each call returns when its commit
is on disk, not before.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from relight.base.errors import NotReady, Overloaded
from relight.local.eventing import hops, records
from relight.local.eventing.committing import Operation, commit, open_file, tell
from relight.local.eventing.hops import Hop
from relight.local.eventing.records import Entry, Incoming, Letter, Pending, Stored

log = logging.getLogger("relight.eventing")

Result = TypeVar("Result")

GROUP = 256
"""A commit takes in no more once it has so many operations."""
WAITING = 2048
"""Events that may wait for their commit; more are refused (503)."""
WAITING_BYTES = 64 * 2**20
RETRY_AFTER = 1.0
"""Seconds that a refused sender is asked to wait."""
REASON_LENGTH = 500
TRIM = 64
"""Dead letters between two looks at how many there are."""


@dataclass(frozen=True)
class Limits:
    """What the log keeps of what is over."""

    dead: int = 10_000
    """Dead letters at most; the oldest go."""
    dead_age: float = 30 * 86400.0
    """Seconds that a dead letter is kept at most."""
    hops: int = 20_000
    """Deliveries that the history holds: 10 MB, and as long as a second answer to the same event is told from the
    first."""


class EventLog:
    """See the module. ``start`` opens the file and starts the writer; ``stop`` commits what waits and closes it."""

    def __init__(self, path: Path, limits: Limits | None = None) -> None:
        self.path = path
        self._limits = limits or Limits()
        self._buried = 0
        self._operations: queue.SimpleQueue[list[Operation] | None] = queue.SimpleQueue()
        self._gathered: list[Operation] = []
        """What came in this turn of the loop: the writer gets it as one, when all that is ready has been taken in."""
        self._waiting = 0
        self._waiting_bytes = 0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Open or make the file. PlatformError if it is no such file, or one of a newer relight."""
        if self._thread is not None:
            return
        self._loop = asyncio.get_running_loop()
        database = await asyncio.to_thread(open_file, self.path)
        self._thread = threading.Thread(target=self._write, args=(database,), name="event-log", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Commit what waits, close the file, join the writer. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._hand_over()
        self._operations.put(None)
        await asyncio.to_thread(thread.join)

    async def accept(self, incoming: Incoming) -> int:
        """Store an event with its deliveries; its sequence number once it is on disk. Overloaded when too many wait."""
        return (await self.accept_all([incoming]))[0]

    async def accept_all(
        self,
        incoming: Sequence[Incoming],
        cursor: tuple[str, str] | None = None,
        dead: Sequence[tuple[Incoming, str]] = (),
    ) -> list[int]:
        """As ``accept_then``, for those who wait; their sequence numbers."""
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self.accept_then(incoming, lambda seqs, error: _resolve(future, seqs, error), cursor, dead)
        return await future

    def accept_then(
        self,
        incoming: Sequence[Incoming],
        then: Callable[[list[int], BaseException | None], None],
        cursor: tuple[str, str] | None = None,
        dead: Sequence[tuple[Incoming, str]] = (),
    ) -> None:
        """Store events, all or none; ``then`` hears their sequence numbers on the loop, or the error, once they are on
        disk. For those who take thousands a second: no task, no future. Overloaded, NotReady.

        With them, how far their source has come (``cursor``: its name, the value), and what is ``dead`` from the start,
        with the reason.
        """
        size, count = sum(one.size for one in incoming), len(incoming)
        if self._waiting + count > WAITING or self._waiting_bytes + size > WAITING_BYTES:
            raise Overloaded("too many events wait to be written to disk; try again", retry_after=RETRY_AFTER)
        if self._thread is None:
            raise NotReady("the event log is closed")

        def run(database: sqlite3.Connection) -> list[int]:
            if cursor is not None:
                database.execute("INSERT OR REPLACE INTO cursors VALUES (?, ?)", cursor)
            for one, reason in dead:
                database.execute(
                    "UPDATE deliveries SET dead = 1, reason = ? WHERE event = ?",
                    (reason[:REASON_LENGTH], one.insert(database)),
                )
            return records.insert_all(database, incoming) if incoming else []

        def told(seqs: Any, error: BaseException | None) -> None:
            self._waiting -= count
            self._waiting_bytes -= size
            then(seqs or [], error)

        self._waiting += count
        self._waiting_bytes += size
        alone = cursor is not None or bool(dead)
        self._gather(Operation(run, told, None if alone else incoming))

    async def settle(
        self, seq: int, trigger: str, reply: Incoming | None = None, *, hop: Hop | None = None, once: bool = False
    ) -> int | None:
        """A delivery is done; its reply enters the log in the same commit: a crash neither loses nor doubles it.

        The reply's sequence number; None if there is no reply, or if ``once`` and the same event has had one from this
        Trigger before: then that one stands.
        """

        def run(database: sqlite3.Connection) -> int | None:
            first = True
            if hop is not None:
                if once and hop.reply_id is not None:
                    first = not hops.is_answered(database, hop.trigger, hop.event, hop.source, hop.id, hop.digest)
                hop.insert(database, self._limits.hops)
            records.remove(database, seq, trigger)
            return reply.insert(database) if reply is not None and first else None

        return await self._do(run)

    async def postpone(
        self, seq: int, trigger: str, attempt: int, due: float, reason: str, *, began: float = 0.0
    ) -> None:
        """A delivery failed and is tried again at ``due`` (seconds since 1970) as attempt ``attempt``."""
        changes = f"attempt = ?, due = ?, reason = ?, {_TRIED}"
        await self._update(seq, trigger, changes, attempt, due, reason[:REASON_LENGTH], _tried(began, reason))

    async def divert(self, seq: int, trigger: str, letter: Letter, due: float, *, began: float = 0.0) -> None:
        """A delivery failed for good: from now on it goes to the dead-letter sink."""
        values = (letter.destination, letter.status, letter.answer, letter.reason[:REASON_LENGTH], due)
        changes = f"attempt = 0, destination = ?, status = ?, answer = ?, reason = ?, due = ?, {_TRIED}"
        await self._update(seq, trigger, changes, *values, _tried(began, letter.reason))

    async def bury(
        self,
        seq: int,
        trigger: str,
        status: int | None,
        reason: str,
        *,
        name: str,
        at: float,
        attempt: int = 0,
        began: float = 0.0,
    ) -> None:
        """A delivery failed for good, and no sink took it: kept as dead, with the reason, as long as the limits say."""

        def run(database: sqlite3.Connection) -> int:
            database.execute(
                "UPDATE deliveries SET dead = 1, status = ?, reason = ?, name = ?, due = ?, attempt = ?,"
                f" {_TRIED} WHERE event = ? AND trigger = ?",
                (status, reason[:REASON_LENGTH], name, at, attempt, _tried(began, reason), seq, trigger),
            )
            self._buried += 1
            return self._trim(database, at) if self._buried % TRIM == 0 else 0

        await self._do(run)

    def _trim(self, database: sqlite3.Connection, now: float) -> int:
        gone = records.trim_dead(database, self._limits.dead, now - self._limits.dead_age)
        if gone:
            log.warning("dead_letters.trimmed count=%d: over the limit of number or age", gone)
        return gone

    async def trim(self, now: float) -> int:
        """Drop the dead letters that are over the limits; how many there were."""
        return await self._do(lambda database: self._trim(database, now))

    async def revive(self, chosen: Sequence[tuple[int, str]], due: float) -> list[tuple[int, str]]:
        """Dead deliveries (event, trigger) become pending again, as new; those that were dead still."""

        def run(database: sqlite3.Connection) -> list[tuple[int, str]]:
            return [
                (seq, trigger)
                for seq, trigger in chosen
                if database.execute(
                    "UPDATE deliveries SET dead = 0, attempt = 0, due = ?, reason = NULL, status = NULL, answer = NULL,"
                    " destination = NULL WHERE event = ? AND trigger = ? AND dead = 1",
                    (due, seq, trigger),
                ).rowcount
            ]

        return await self._do(run)

    async def discard(self, chosen: Sequence[tuple[int, str]]) -> int:
        """Dead deliveries (event, trigger) go for good; how many there were."""

        def run(database: sqlite3.Connection) -> int:
            found = [
                (seq, trigger)
                for seq, trigger in chosen
                if database.execute(
                    "SELECT 1 FROM deliveries WHERE event = ? AND trigger = ? AND dead = 1", (seq, trigger)
                ).fetchone()
            ]
            for seq, trigger in found:
                records.remove(database, seq, trigger)
            return len(found)

        return await self._do(run)

    async def cursor(self, name: str) -> str | None:
        """How far a source has come, as it was stored with its last events."""

        def run(database: sqlite3.Connection) -> str | None:
            row = database.execute("SELECT value FROM cursors WHERE name = ?", (name,)).fetchone()
            return None if row is None else str(row[0])

        return await self._do(run)

    async def forget_cursor(self, name: str) -> None:
        """A source is gone."""
        await self._do(lambda database: database.execute("DELETE FROM cursors WHERE name = ?", (name,)).rowcount)

    async def is_answered(self, trigger: str, stored: Stored) -> bool:
        """Whether a Trigger's subscriber has answered this event before, under another number."""
        event = stored.event

        def run(database: sqlite3.Connection) -> bool:
            names = (event.source, event.id, event.digest())
            return hops.is_answered(database, trigger, stored.seq, *names, replied=False)

        return await self._do(run)

    async def event(self, seq: int) -> Stored | None:
        """An event by its sequence number; None if all its deliveries are done."""
        return await self._do(lambda database: Stored.read(database, seq))

    async def pending(self) -> list[Pending]:
        """All deliveries that are still to do, oldest event first."""
        return await self._do(Pending.read_all)

    async def pending_for(self, trigger: str) -> list[Stored]:
        """The events, without their data, that are pending for a Trigger."""
        return await self._do(lambda database: Stored.read_pending(database, trigger))

    async def dead(self, limit: int = 1000) -> list[Entry]:
        """Deliveries that were given up, newest first."""
        return await self._read(lambda database: Entry.read(database, dead=True, limit=limit))

    async def waiting(self, limit: int = 1000) -> list[Entry]:
        """Deliveries that are still to do with their events, oldest first."""
        return await self._read(lambda database: Entry.read(database, dead=False, limit=limit))

    async def tree(self, wanted: str) -> tuple[list[Hop], list[Entry]]:
        """The chains that an event (by its id) or a trace (by its id) belongs to."""
        return await self._read(lambda database: hops.read_tree(database, wanted))

    async def _read(self, run: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run a reading that may take its time: beside the writer, on a connection of its own."""
        if self._thread is None:
            raise NotReady("the event log is closed")

        def work() -> Result:
            database = sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True)
            try:
                return run(database)
            finally:
                database.close()

        return await asyncio.to_thread(work)

    async def keep_only(self, triggers: Sequence[str]) -> int:
        """Drop what is pending for any other Trigger (they were deleted); how many deliveries that were."""
        return await self._do(lambda database: records.remove_triggers(database, triggers))

    async def drop(self, trigger: str) -> None:
        """Drop what is pending for a Trigger that was deleted."""

        def run(database: sqlite3.Connection) -> None:
            rows = database.execute("SELECT event FROM deliveries WHERE dead = 0 AND trigger = ?", (trigger,))
            for (seq,) in rows.fetchall():
                records.remove(database, seq, trigger)

        await self._do(run)

    async def _update(self, seq: int, trigger: str, changes: str, *values: object) -> None:
        statement = f"UPDATE deliveries SET {changes} WHERE event = ? AND trigger = ?"
        await self._do(lambda database: database.execute(statement, (*values, seq, trigger)).rowcount)

    async def _do(self, run: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run an operation on the writer thread; its result after the commit."""
        if self._thread is None or self._loop is None:
            raise NotReady("the event log is closed")
        future: asyncio.Future[Result] = self._loop.create_future()

        self._gather(Operation(run, lambda result, error: _resolve(future, result, error)))
        # A caller that is cancelled does not hold up the commit that is on its way: nobody waits for it any more.
        return await future

    def _gather(self, operation: Operation) -> None:
        assert self._loop is not None
        self._gathered.append(operation)
        if len(self._gathered) == 1:
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        if self._gathered:
            gathered, self._gathered = self._gathered, []
            self._operations.put(gathered)

    def _write(self, database: sqlite3.Connection) -> None:
        """The writer thread: take all that waits, commit it as one, tell the loop; until the None of ``stop``."""
        open_ = True
        while open_:
            group: list[Operation] = []
            operations = self._operations.get()
            while operations is not None:
                group += operations
                if len(group) >= GROUP:
                    break
                try:
                    operations = self._operations.get_nowait()
                except queue.Empty:
                    break
            else:
                open_ = False
            commit(database, group)
            try:
                assert self._loop is not None
                self._loop.call_soon_threadsafe(tell, group)
            except RuntimeError:
                break  # the loop is closed: nobody waits any more
        database.close()


def _resolve(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Tell whoever waits, if somebody still does."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


_TRIED = (
    f"tries = CASE WHEN coalesce(length(tries), 0) < {records.TRIES_LENGTH}"
    " THEN coalesce(tries, '') || ? ELSE tries END"
)


def _tried(began: float, reason: str) -> str:
    """A failed attempt as a line of the delivery's history."""
    return f"{began:.3f} {' '.join(reason.split())[:200]}\n"
