"""What all feeds share: reading, reconnecting, back-pressure, and acknowledgement only of what is ours.

A feed reads records in batches. A batch becomes events that enter the event log in one commit, together with the note
of which records they were; only then the broker is told. After a crash in between, the records come once more and are
known by the note: they are acknowledged and not taken twice.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from relight.base.errors import NotReady, Overloaded, RelightError
from relight.base.tasks import Tasks
from relight.local.conditions import Condition
from relight.local.eventing.naming import Hub
from relight.local.eventing.world import World
from relight.wire.cloudevents import Event

log = logging.getLogger("relight.eventing")

BATCH = 100
"""Records that are read, written down and acknowledged together at most."""
RECENT = 2 * BATCH
"""Marks of acknowledged records that stay noted."""
MOST_NOTED = 20 * BATCH
FIRST_PAUSE = 0.2
LAST_PAUSE = 30.0
"""Seconds between two attempts to reach a broker: doubled with each failure in a row."""
BLOCK = 2.0
"""Seconds that a read waits for a record."""
LAG_EVERY = 5.0
"""Seconds between two questions for the lag."""
CLOSING = 5.0
"""Seconds for a connection to close."""
LIMIT = 2**20
"""Bytes of a record at most, as of an event at the broker's door; what is larger is dead-lettered."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a broker, as an event; ``poison`` says why it is none that can be delivered."""

    mark: str
    """What the record is known by where it was read, also when it is read once more."""
    event: Event
    poison: str = ""
    again: bool = True
    """Whether it may have been read before: False only where the broker says that it was not."""


class Feed(Protocol):
    """One connection to a broker. Whatever it raises ends it; it is made anew after a pause."""

    lag: int | None
    """Records that are there and not read yet, where that is known."""

    async def open(self) -> None: ...

    async def read(self) -> Sequence[Record]:
        """The next records, those first that were read before and not acknowledged. Empty: none came for a while."""
        ...

    async def acknowledge(self, records: Sequence[Record]) -> None: ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Line:
    """What is fed: equal lines are the same feed."""

    uid: str
    namespace: str
    name: str
    settings: object
    hub: Hub
    extensions: Mapping[str, str]


class Feeders:
    """The running feeds, by the uid of their object."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._tasks = Tasks("sources")
        self._running: dict[str, tuple[Line, asyncio.Task[None]]] = {}
        self._states: dict[str, Condition] = {}
        self._lags: dict[str, tuple[tuple[str, str], int]] = {}
        world.dispatcher.metrics.gauge(
            "relight_source_lag",
            "Records at the broker that are not taken yet",
            ("namespace", "source"),
            lambda: list(self._lags.values()),
        )

    def state(self, uid: str) -> Condition | None:
        """How a feed is; None where there is none."""
        return self._states.get(uid)

    async def run(self, line: Line, make: Callable[[], Feed], told: Callable[[], None]) -> None:
        """Feed along a line from now on, whatever was fed before; ``told`` is called when the state changes."""
        known = self._running.get(line.uid)
        if known is not None and known[0] == line:
            return
        await self.end(line.uid)
        self._states[line.uid] = Condition("Deployed", "Unknown", "Connecting", "The broker is not reached yet.")
        task = self._tasks.spawn(self._run(line, make, told), f"{line.namespace}/{line.name}")
        self._running[line.uid] = (line, task)

    async def end(self, uid: str) -> None:
        """Stop feeding; where it is to be read on stays known."""
        known = self._running.pop(uid, None)
        self._states.pop(uid, None)
        self._lags.pop(uid, None)
        if known is not None:
            known[1].cancel()
            await asyncio.wait([known[1]])

    async def forget(self, uid: str) -> None:
        """The object is gone."""
        await self.end(uid)
        await self._world.log.forget_cursor(_cursor(uid))

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _run(self, line: Line, make: Callable[[], Feed], told: Callable[[], None]) -> None:
        """Read until cancelled; after a failure connect anew, after a pause that grows."""
        failures = 0

        def tell(state: Condition) -> None:
            if self._states.get(line.uid) != state:
                self._states[line.uid] = state
                told()

        while True:
            feed = make()
            confirmed: set[str] = set()
            try:
                await feed.open()
                tell(Condition("Deployed", "True"))
                while True:
                    await self._one_batch(feed, line, confirmed)
                    failures = 0
                    if feed.lag is not None:
                        self._lags[line.uid] = ((line.namespace, line.name), feed.lag)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                failures += 1
                pause = min(LAST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 16))
                log.warning(
                    "source.failed source=%s/%s error=%r: connects anew in %.1f s",
                    line.namespace,
                    line.name,
                    error,
                    pause,
                )
                tell(Condition("Deployed", "False", "BrokerFailed", f"{type(error).__name__}: {error}"[:300]))
                await asyncio.sleep(pause)
            finally:
                await _close(feed)

    async def _one_batch(self, feed: Feed, line: Line, confirmed: set[str]) -> None:
        """Read, write down, acknowledge: in this order, whatever happens in between.

        ``confirmed``: the marks that were acknowledged since the connection was made.
        """
        records = await feed.read()
        if not records:
            return
        noted = json.loads(await self._world.log.cursor(_cursor(line.uid)) or "[]")
        known = set(noted)
        fresh = [record for record in records if not (record.again and record.mark in known)]
        if fresh:
            kept = still_noted(noted, confirmed)
            confirmed.intersection_update(kept)
            await self._take(fresh, line, kept)
        await feed.acknowledge(records)
        confirmed.update(record.mark for record in records)

    async def _take(self, records: Sequence[Record], line: Line, noted: list[str]) -> None:
        """Write records down, together with their marks, behind those that are ``noted`` already."""
        cursor = (_cursor(line.uid), json.dumps([*noted, *(record.mark for record in records)]))
        own = (line.hub[0], f"outlets/{line.uid}")
        good = [_with(record.event, line.extensions) for record in records if not record.poison]
        bad = [(record.event, record.poison) for record in records if record.poison]
        poison = (own, f"{line.uid}/outlet", bad)
        pause = FIRST_PAUSE
        while True:
            try:
                await self._world.dispatcher.publish_all(line.hub, good, cursor=cursor, poison=poison)
                return
            except (Overloaded, NotReady) as error:
                # The broker is full: the records stay where they are until there is room.
                await asyncio.sleep(min(error.retry_after or pause, LAST_PAUSE))
            except RelightError as error:
                if len(records) == 1:
                    poisoned = Record(records[0].mark, records[0].event, error.message)
                    await self._take([poisoned], line, noted)
                    return
                # One of them is not taken: find out which.
                for place, record in enumerate(records):
                    await self._take([record], line, [*noted, *(one.mark for one in records[:place])])
                return


def still_noted(noted: Sequence[str], confirmed: set[str]) -> list[str]:
    """The marks that stay noted, oldest first: what may come once more.

    That is whatever was not acknowledged, as after a kill: a broker may hand out newer records before those. And the
    last of what was: a broker that ends badly may have forgotten that.
    """
    old = max(0, sum(mark in confirmed for mark in noted) - RECENT)
    kept = []
    for mark in noted:
        if old and mark in confirmed:
            old -= 1
        else:
            kept.append(mark)
    return kept[-MOST_NOTED:]


async def _close(feed: Feed) -> None:
    """A connection that is broken already may not end the feed."""
    try:
        async with asyncio.timeout(CLOSING):
            await feed.close()
    except Exception as error:
        log.debug("source.close_failed error=%r: it is gone all the same", error)


def _with(event: Event, extensions: Mapping[str, str]) -> Event:
    return event.replace(**extensions) if extensions else event


def _cursor(uid: str) -> str:
    return f"source/{uid}"
