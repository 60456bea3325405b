"""What all sources share: a feed per object, reconnecting, back-pressure, and acknowledgement only of what is ours.

A feed reads records in batches. A batch becomes events that enter the event log in one commit, together with the note
of which records they were; only then the broker is told. After a crash in between, the records come once more and are
known by the note: they are acknowledged and not taken twice.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from relight.base.errors import BadInput, NotReady, Overloaded, Problem, RelightError
from relight.base.tasks import Tasks
from relight.local.conditions import Condition
from relight.local.eventing import statuses
from relight.local.eventing.naming import Hub
from relight.local.eventing.world import Object, Uids, World
from relight.local.kube import kinds
from relight.local.kube.kinds import Kind
from relight.wire.cloudevents import Event

log = logging.getLogger("relight.eventing")

BATCH = 100
"""Records that are read, written down and acknowledged together at most."""
FIRST_PAUSE = 0.2
LAST_PAUSE = 30.0
"""Seconds between two attempts to reach a broker: doubled with each failure in a row."""
LIMIT = 2**20
"""Bytes of a record at most, as of an event at the broker's door; what is larger is dead-lettered."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a broker, as an event; ``poison`` says why it is none that can be delivered."""

    mark: str
    """What the record is known by where it was read."""
    event: Event
    poison: str = ""


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
class Plan:
    """What an object asks for, checked: equal plans are the same feed."""

    attributes: tuple[tuple[str, str], ...]
    """(type, source) of the events, for the status."""
    settings: Mapping[str, Any]
    extensions: Mapping[str, str]


class SourceKind(Protocol):
    """One kind of source."""

    kind: Kind

    def plan(self, obj: Object, secrets: Callable[[str, str], str]) -> Plan:
        """From an object; ``secrets`` gives a value by Secret and key. BadInput names every wrong field."""
        ...

    def feed(self, plan: Plan) -> Feed: ...


class Sources:
    """The reconciler: one running feed per source object."""

    def __init__(self, world: World, of: Iterable[SourceKind]) -> None:
        self._world = world
        self._by_kind = {one.kind: one for one in of}
        self.kinds: tuple[Kind, ...] = tuple(self._by_kind)
        self._uids = Uids()
        self._tasks = Tasks("sources")
        self._running: dict[str, tuple[Plan, Hub, asyncio.Task[None]]] = {}
        self._states: dict[str, Condition] = {}
        self._lags: dict[str, tuple[tuple[str, str], int]] = {}
        world.dispatcher.metrics.gauge(
            "relight_source_lag",
            "Records at the broker that are not read yet",
            ("namespace", "source"),
            lambda: list(self._lags.values()),
        )

    async def look(self, kind: Kind, namespace: str, name: str, obj: Object | None) -> None:
        world, source = self._world, self._by_kind[kind]
        gone = self._uids.replaced(kind, namespace, name, obj)
        if gone is not None:
            await self._end(gone)
            await world.outlets.close(gone, namespace)
            await world.log.forget_cursor(_cursor(gone))
        if obj is None:
            return
        uid, sink = obj["metadata"]["uid"], (obj.get("spec") or {}).get("sink") or {}
        problem: str | None = None
        attributes: Sequence[tuple[str, str]] = ()
        try:
            plan = source.plan(obj, lambda secret, key: _secret(world, namespace, secret, key))
            attributes = plan.attributes
            hub = await world.outlets.open(uid, namespace, f"{name} ({kind.kind})", sink)
            known = self._running.get(uid)
            if known is None or known[:2] != (plan, hub):
                await self._end(uid)
                self._states[uid] = Condition("Deployed", "Unknown", "Connecting", "The broker is not reached yet.")
                run = self._run(source, plan, hub, obj["metadata"])
                self._running[uid] = (plan, hub, self._tasks.spawn(run, f"{namespace}/{name}"))
        except BadInput as error:
            problem = error.message
            await self._end(uid)
        self._tell(kind, namespace, name, problem, attributes)

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _end(self, uid: str) -> None:
        known = self._running.pop(uid, None)
        self._states.pop(uid, None)
        self._lags.pop(uid, None)
        if known is not None:
            known[2].cancel()
            await asyncio.wait([known[2]])

    def _tell(
        self, kind: Kind, namespace: str, name: str, problem: str | None, attributes: Sequence[tuple[str, str]]
    ) -> None:
        world = self._world
        obj = world.store.get(kind, namespace, name)
        if obj is None:
            return
        address = world.addresses.find(namespace, (obj.get("spec") or {}).get("sink") or {})
        state = self._states.get(obj["metadata"]["uid"])
        status = statuses.of_source(obj, address, problem, attributes, world.stamp(), state)
        world.store.set_status(kind, namespace, name, status)

    # One feed

    async def _run(self, source: SourceKind, plan: Plan, hub: Hub, metadata: Mapping[str, Any]) -> None:
        """Read until cancelled; after a failure connect anew, after a pause that grows."""
        uid, names = metadata["uid"], (metadata["namespace"], metadata["name"])
        failures = 0

        def told(state: Condition) -> None:
            if self._states.get(uid) != state:
                self._states[uid] = state
                self._tell(source.kind, *names, None, plan.attributes)

        while True:
            feed = source.feed(plan)
            try:
                await feed.open()
                told(Condition("Deployed", "True"))
                while True:
                    await self._one_batch(feed, plan, hub, uid)
                    failures = 0
                    if feed.lag is not None:
                        self._lags[uid] = (names, feed.lag)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                failures += 1
                pause = min(LAST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 16))
                log.warning("source.failed source=%s/%s error=%r: connects anew in %.1f s", *names, error, pause)
                told(Condition("Deployed", "False", "BrokerFailed", f"{type(error).__name__}: {error}"[:300]))
                await asyncio.sleep(pause)
            finally:
                await feed.close()

    async def _one_batch(self, feed: Feed, plan: Plan, hub: Hub, uid: str) -> None:
        """Read, write down, acknowledge: in this order, whatever happens in between."""
        records = await feed.read()
        if not records:
            return
        noted = json.loads(await self._world.log.cursor(_cursor(uid)) or "[]")
        fresh = [record for record in records if record.mark not in noted]
        if fresh:
            await self._take(fresh, plan, hub, uid)
        await feed.acknowledge(records)

    async def _take(self, records: Sequence[Record], plan: Plan, hub: Hub, uid: str) -> None:
        cursor = (_cursor(uid), json.dumps([record.mark for record in records]))
        own = (hub[0], f"outlets/{uid}")
        good = [_with(record.event, plan.extensions) for record in records if not record.poison]
        bad = [(record.event, record.poison) for record in records if record.poison]
        pause = FIRST_PAUSE
        while True:
            try:
                await self._world.dispatcher.publish_all(hub, good, cursor=cursor, poison=(own, f"{uid}/outlet", bad))
                return
            except (Overloaded, NotReady) as error:
                # The broker is full: the records stay where they are until there is room.
                await asyncio.sleep(min(error.retry_after or pause, LAST_PAUSE))
            except RelightError as error:
                if len(records) == 1:
                    poisoned = Record(records[0].mark, records[0].event, error.message)
                    await self._take([poisoned], plan, hub, uid)
                    return
                # One of them is not taken: find out which.
                for record in records:
                    await self._take([record], plan, hub, uid)
                return


def _with(event: Event, extensions: Mapping[str, str]) -> Event:
    return event.replace(**extensions) if extensions else event


def _cursor(uid: str) -> str:
    return f"source/{uid}"


def _secret(world: World, namespace: str, name: str, key: str) -> str:
    found = world.store.get(kinds.SECRET, namespace, name)
    encoded = ((found or {}).get("data") or {}).get(key)
    if encoded is None:
        raise BadInput.of([Problem("spec", f"there is no Secret {namespace}/{name} with the key {key!r}")])
    return base64.b64decode(encoded).decode("utf-8", "replace").strip()


def overrides(spec: Mapping[str, Any]) -> dict[str, str]:
    """The extensions of ``spec.ceOverrides``."""
    given = (spec.get("ceOverrides") or {}).get("extensions") or {}
    return {str(name): str(value) for name, value in given.items()}
