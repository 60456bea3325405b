"""Hubs whose events leave for a message broker: what is posted there is on disk first, and then published.

As durable as any delivery, and tried for as long as it takes: what the broker cannot take now waits, and only what it
refuses for good is a dead letter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol

from relight.decide.delivery import Retry
from relight.local.eventing.dispatch import Dispatcher
from relight.local.eventing.naming import Hub, sink_uri
from relight.local.eventing.sending import Sender
from relight.local.eventing.triggers import ALL, Subscription, Table
from relight.wire.cloudevents import Event

CONCURRENCY = 64
"""Events on their way to one broker's topic at once: their confirmations are waited for together."""
PATIENCE = Retry(retries=sys.maxsize, delay=0.2, longest=30.0)
"""A broker that cannot be reached is no reason to give events up."""


class Publisher(Protocol):
    async def publish(self, event: Event) -> None: ...

    async def close(self) -> None: ...


class Departures:
    """The publishers, by the uid of the object that they belong to."""

    def __init__(self, dispatcher: Dispatcher, table: Table, sender: Sender) -> None:
        self._dispatcher = dispatcher
        self._table = table
        self._sender = sender
        self._open: dict[str, tuple[Hub, object, Publisher]] = {}

    async def open(self, uid: str, name: str, hub: Hub, settings: object, make: Callable[[], Publisher]) -> None:
        """Publish a hub's events; equal ``settings`` are the same publisher. It may be called again at any time."""
        known = self._open.get(uid)
        if known is not None and known[:2] != (hub, settings):
            await self._close(uid)
            known = None
        if known is None:
            publisher = make()
            self._open[uid] = (hub, settings, publisher)
            self._sender.publish_to(sink_uri(*hub), publisher.publish)
        await self._take(uid, name, hub)

    async def pause(self, uid: str, name: str, hub: Hub) -> None:
        """The object's settings are wrong for now: what is there waits, and more is taken."""
        await self._close(uid)
        await self._take(uid, name, hub)

    async def _take(self, uid: str, name: str, hub: Hub) -> None:
        await self._dispatcher.update(
            Subscription(
                _lane(uid),
                hub[0],
                name,
                hub[1],
                ALL,
                retry=PATIENCE,
                subscriber={"uri": sink_uri(*hub)},
                concurrency=CONCURRENCY,
                ordering_key="partitionkey",
                keyless="free",
            )
        )
        self._table.add_hub(hub)

    async def close(self, uid: str, hub: Hub) -> None:
        """The object is gone, and what was on its way with it."""
        self._table.remove_hub(hub)
        await self._dispatcher.remove(_lane(uid))
        await self._close(uid)

    async def stop(self) -> None:
        for uid in list(self._open):
            await self._close(uid)

    async def _close(self, uid: str) -> None:
        known = self._open.pop(uid, None)
        if known is not None:
            self._sender.publish_to(sink_uri(*known[0]), None)
            await known[2].close()


def _lane(uid: str) -> str:
    return f"{uid}/sink"
