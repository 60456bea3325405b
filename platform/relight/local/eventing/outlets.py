"""Outlets: where events go that no Trigger asks for, such as the reply of a Subscription or the events of a source.

A Broker or a channel of this machine takes them in the very commit that they come from. Any other destination gets a
hub of its own with one subscriber, so that what is on its way there is as durable, and as often tried, as all else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relight.decide.delivery import Retry
from relight.local.eventing.dispatch import Dispatcher
from relight.local.eventing.naming import Hub, hub_of
from relight.local.eventing.triggers import ALL, Subscription, Table


class Outlets:
    """The platform's own hubs, by the uid of the object that they belong to."""

    def __init__(self, dispatcher: Dispatcher, table: Table) -> None:
        self._dispatcher = dispatcher
        self._table = table

    async def open(
        self,
        uid: str,
        namespace: str,
        name: str,
        destination: Mapping[str, Any],
        retry: Retry | None = None,
        dead_letter: Mapping[str, Any] | None = None,
    ) -> Hub:
        """The hub that leads to a destination. ``name`` is what people read; it may be called again at any time."""
        own = (namespace, f"outlets/{uid}")
        # Also where the destination is a hub by now: it may have been none when what is pending was accepted.
        await self._dispatcher.update(
            Subscription(
                f"{uid}/outlet",
                namespace,
                name,
                own[1],
                ALL,
                retry=retry or Retry(),
                subscriber=destination,
                dead_letter=dead_letter,
            )
        )
        self._table.add_hub(own)
        hub = hub_of(namespace, destination)
        # A Broker that is not there yet may come: until then the delivery is tried as any other.
        return hub if hub is not None and self._table.has_hub(hub) else own

    async def close(self, uid: str, namespace: str) -> None:
        """The object is gone, and what was on its way to its destination with it."""
        self._table.remove_hub((namespace, f"outlets/{uid}"))
        await self._dispatcher.remove(f"{uid}/outlet")
