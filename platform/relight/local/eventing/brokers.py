"""Brokers and Triggers come alive: the objects become hubs and subscriptions, and get their status."""

from __future__ import annotations

from relight.base.errors import BadInput
from relight.decide.filters import Filter
from relight.local.eventing import statuses
from relight.local.eventing.triggers import Subscription
from relight.local.eventing.world import Follower, Object
from relight.local.kube import kinds
from relight.local.kube.kinds import Kind

NOTHING = Filter((lambda event: False,))
"""The filter of a Trigger that cannot be built: what is pending for it is kept, nothing new is added."""


class Brokers(Follower):
    kinds = (kinds.BROKER,)

    async def look(self, kind: Kind, namespace: str, name: str, obj: Object | None) -> None:
        world = self._world
        if obj is None:
            world.table.remove_hub((namespace, name))
            world.validation.forget((namespace, name))
            return
        world.table.add_hub((namespace, name))
        unchecked = world.validation.set((namespace, name), obj["metadata"].get("annotations") or {})
        sink = ((obj.get("spec") or {}).get("delivery") or {}).get("deadLetterSink")
        url = world.hub_url(namespace, name)
        status = statuses.of_broker(obj, url, world.address(namespace, sink), world.stamp(), unchecked=unchecked)
        world.store.set_status(kind, namespace, name, status)


class Triggers(Follower):
    kinds = (kinds.TRIGGER,)

    async def look(self, kind: Kind, namespace: str, name: str, obj: Object | None) -> None:
        world = self._world
        gone = self._uids.replaced(kind, namespace, name, obj)
        if gone is not None:
            await world.dispatcher.remove(gone)
        if obj is None:
            return
        spec = obj.get("spec") or {}
        broker_name = spec.get("broker") or "default"
        broker = world.store.get(kinds.BROKER, namespace, broker_name)
        problem = None
        try:
            subscription = Subscription.of(obj, broker)
        except BadInput as error:
            problem = error.message
            subscription = Subscription(obj["metadata"]["uid"], namespace, name, broker_name, NOTHING)
        await world.dispatcher.update(subscription)
        status = statuses.of_trigger(
            obj,
            broker,
            world.addresses.find(namespace, spec.get("subscriber") or {}),
            world.address(namespace, subscription.dead_letter),
            problem,
            world.stamp(),
            paused=subscription.paused,
        )
        world.store.set_status(kind, namespace, name, status)
