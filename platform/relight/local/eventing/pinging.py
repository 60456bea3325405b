"""PingSources: an event at every tick of a schedule, none twice and none missed, over restarts too.

A tick's event enters the event log in the same commit as the note that it was sent. What was missed while nobody was
there is made up for as the annotation ``relight.dev/catch-up`` says: ``latest`` (the default), ``all`` or ``none``.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from relight.base.errors import BadInput, Problem, RelightError
from relight.base.tasks import Tasks
from relight.decide.schedule import CATCH_UPS, CatchUp, Schedule, due
from relight.local.eventing import statuses
from relight.local.eventing.naming import Hub
from relight.local.eventing.world import Object, Uids, World
from relight.local.kube import kinds
from relight.local.kube.kinds import Kind
from relight.wire.cloudevents import JSON, Event

log = logging.getLogger("relight.eventing")

CATCH_UP = "relight.dev/catch-up"
TYPE = "dev.knative.sources.ping"
LONGEST_SLEEP = 30.0
"""Seconds between two looks at the clock, which may have been set meanwhile."""
RETRY = 1.0
"""Seconds until a tick is tried again that could not be written down."""
_IDS = uuid.UUID("b1a3ab4e-57d4-5a0f-8a4c-0d2b6d9f7c11")


@dataclass(frozen=True)
class Ping:
    """A PingSource, checked."""

    uid: str
    source: str
    schedule: Schedule
    catch_up: CatchUp
    since: float
    """Ticks before this are none of its own: it was created then."""
    data: bytes | None
    content_type: str | None
    extensions: Mapping[str, str]

    @classmethod
    def of(cls, obj: Object) -> Ping:
        """From the object. BadInput names every wrong field."""
        metadata, spec = obj["metadata"], obj.get("spec") or {}
        problems: list[Problem] = []
        schedule = Schedule("* * * * *")
        try:
            schedule = Schedule.of(str(spec.get("schedule") or "* * * * *"), spec.get("timezone"))
        except BadInput as error:
            problems += error.problems
        catch_up = (metadata.get("annotations") or {}).get(CATCH_UP, "latest")
        if catch_up not in CATCH_UPS:
            what = f"{', '.join(CATCH_UPS)} was expected, got {catch_up!r}"
            problems.append(Problem(f"metadata.annotations[{CATCH_UP}]", what))
        data, content_type = _data(spec, problems)
        extensions = (spec.get("ceOverrides") or {}).get("extensions") or {}
        if problems:
            raise BadInput.of(problems)
        return cls(
            uid=metadata["uid"],
            source=_source(obj),
            schedule=schedule,
            catch_up=catch_up,
            since=datetime.fromisoformat(metadata["creationTimestamp"]).timestamp(),
            data=data,
            content_type=content_type,
            extensions={str(name): str(value) for name, value in extensions.items()},
        )

    def event(self, tick: float) -> Event:
        """The event of a tick: the same one whenever it is made."""
        attributes: dict[str, Any] = dict(self.extensions)
        attributes["time"] = datetime.fromtimestamp(tick, UTC).isoformat().replace("+00:00", "Z")
        if self.content_type is not None:
            attributes["datacontenttype"] = self.content_type
        return Event(str(uuid.uuid5(_IDS, f"{self.uid} {tick}")), self.source, TYPE, attributes, self.data)

    @property
    def plan(self) -> str:
        """What the ticks follow from: where it changes, counting begins anew."""
        return f"{self.schedule.offset} {self.schedule.text} {self.schedule.zone}"


def _data(spec: Mapping[str, Any], problems: list[Problem]) -> tuple[bytes | None, str | None]:
    """The data and its media type: the given one; else JSON where it is JSON, and text where it is not."""
    text, encoded, given = spec.get("data"), spec.get("dataBase64"), spec.get("contentType") or None
    if text and encoded:
        problems.append(Problem("spec.data", "data or dataBase64 was expected, not both"))
    if encoded:
        try:
            return base64.b64decode(str(encoded), validate=True), given or "application/octet-stream"
        except binascii.Error:
            problems.append(Problem("spec.dataBase64", "Base64 was expected"))
    if not text:
        return None, given
    try:
        json.loads(text)
    except ValueError:
        if given == JSON:
            problems.append(Problem("spec.data", f"it is not JSON, as {JSON} says"))
        return str(text).encode(), given or "text/plain"
    return str(text).encode(), given or JSON


class Pings:
    """The reconciler: one running clock per PingSource."""

    kinds = (kinds.PING_SOURCE,)

    def __init__(self, world: World) -> None:
        self._world = world
        self._uids = Uids()
        self._tasks = Tasks("pings")
        self._clocks: dict[str, tuple[Ping, Hub, asyncio.Task[None]]] = {}

    async def look(self, kind: Kind, namespace: str, name: str, obj: Object | None) -> None:
        world = self._world
        gone = self._uids.replaced(kind, namespace, name, obj)
        if gone is not None:
            await self._end(gone)
            await world.outlets.close(gone, namespace)
            await world.log.forget_cursor(_cursor(gone))
        if obj is None:
            return
        uid, sink = obj["metadata"]["uid"], (obj.get("spec") or {}).get("sink") or {}
        problem = None
        try:
            ping = Ping.of(obj)
            hub = await world.outlets.open(uid, namespace, f"{name} (ping)", sink)
            known = self._clocks.get(uid)
            if known is None or known[:2] != (ping, hub):
                await self._end(uid)
                task = self._tasks.spawn(self._run(ping, hub, world.now()), f"{namespace}/{name}")
                self._clocks[uid] = (ping, hub, task)
        except BadInput as error:
            problem = error.message
            await self._end(uid)
        status = statuses.of_source(
            obj, world.addresses.find(namespace, sink), problem, [(TYPE, _source(obj))], world.stamp()
        )
        world.store.set_status(kind, namespace, name, status)

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _end(self, uid: str) -> None:
        """Stop a clock, and wait until it has written down what it had begun to."""
        known = self._clocks.pop(uid, None)
        if known is not None:
            known[2].cancel()
            await asyncio.wait([known[2]])

    async def _run(self, ping: Ping, hub: Hub, seen: float) -> None:
        world = self._world
        last = await self._begin(ping, seen)
        while True:
            now = world.now()
            found = due(ping.schedule, last, now, ping.catch_up)
            if found.lost:
                log.warning("ping.missed source=%s count=%d: not made up for", ping.source, found.lost)
            try:
                for tick in found.ticks:
                    cursor = (_cursor(ping.uid), json.dumps({"plan": ping.plan, "last": tick}))
                    await world.dispatcher.publish_all(hub, [ping.event(tick)], cursor=cursor)
                    last = tick
            except RelightError as error:
                log.warning("ping.failed source=%s error=%s: again in %g s", ping.source, error, RETRY)
                await asyncio.sleep(RETRY)
                continue
            if found.lost:
                # What was given up must not be found missing at every look.
                last = max(last, now)
            following = ping.schedule.after(max(last, now))
            wait = LONGEST_SLEEP if following is None else following - world.now()
            await asyncio.sleep(min(max(wait, 0.0), LONGEST_SLEEP))

    async def _begin(self, ping: Ping, seen: float) -> float:
        """Up to when ticks are known to be sent. ``seen``: when the source was first seen as it is now."""
        found = await self._world.log.cursor(_cursor(ping.uid))
        if found is None:
            return ping.since
        cursor = json.loads(found)
        # Under a new schedule nothing was missed before it was given.
        return float(cursor["last"]) if cursor["plan"] == ping.plan else seen


def _cursor(uid: str) -> str:
    return f"ping/{uid}"


def _source(obj: Object) -> str:
    metadata = obj["metadata"]
    return f"/apis/v1/namespaces/{metadata['namespace']}/pingsources/{metadata['name']}"
