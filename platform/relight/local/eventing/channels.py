"""Channels and Subscriptions: a channel is a hub like a Broker, a Subscription wants all of it and sends replies on.

A Channel and the InMemoryChannel that would back it on a cluster are one and the same here: both are in the event log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relight.base.errors import BadInput
from relight.decide.delivery import Retry
from relight.local.eventing import statuses
from relight.local.eventing.brokers import NOTHING
from relight.local.eventing.naming import CHANNELS, Hub, hub_name, outgoing
from relight.local.eventing.triggers import Subscription
from relight.local.eventing.world import Follower, Object
from relight.local.kube import kinds
from relight.local.kube.kinds import Kind


class Channels(Follower):
    kinds = (kinds.CHANNEL, kinds.IN_MEMORY_CHANNEL)

    async def look(self, kind: Kind, namespace: str, name: str, obj: Object | None) -> None:
        world, hub = self._world, (namespace, hub_name(kind, name))
        if obj is None:
            world.table.remove_hub(hub)
            return
        world.table.add_hub(hub)
        sink = ((obj.get("spec") or {}).get("delivery") or {}).get("deadLetterSink")
        status = statuses.of_channel(obj, world.hub_url(*hub), world.address(namespace, sink), world.stamp())
        world.store.set_status(kind, namespace, name, status)


class Subscriptions(Follower):
    kinds = (kinds.SUBSCRIPTION,)

    async def look(self, kind: Kind, namespace: str, name: str, obj: Object | None) -> None:
        world = self._world
        gone = self._uids.replaced(kind, namespace, name, obj)
        if gone is not None:
            await world.dispatcher.remove(gone)
            await world.outlets.close(gone, namespace)
        if obj is None:
            return
        spec = obj.get("spec") or {}
        channel, hub, unknown = self._channel(namespace, spec.get("channel") or {})
        problem = unknown
        subscription = Subscription(obj["metadata"]["uid"], namespace, name, hub, NOTHING)
        if unknown is None:
            try:
                # Replies need their own way before anything is answered.
                built = Subscription.of_channel(obj, hub, None, channel)
                replies = await self._replies(obj, built.retry, built.dead_letter)
                subscription = Subscription.of_channel(obj, hub, replies, channel)
            except BadInput as error:
                problem = error.message
        await world.dispatcher.update(subscription)
        status = statuses.of_subscription(
            obj,
            channel,
            world.address(namespace, spec.get("subscriber")),
            world.address(namespace, spec.get("reply")),
            world.address(namespace, subscription.dead_letter),
            problem,
            world.stamp(),
        )
        world.store.set_status(kind, namespace, name, status)

    def _channel(self, namespace: str, ref: Mapping[str, Any]) -> tuple[Object | None, str, str | None]:
        """The channel that is referred to, its hub, and what is wrong with the reference."""
        api_version, kind_name, name = (str(ref.get(field, "")) for field in ("apiVersion", "kind", "name"))
        kind = kinds.by_kind(api_version, kind_name)
        if kind is None or kind not in CHANNELS:
            return None, "", f"spec.channel: {api_version} {kind_name} is no channel here"
        return self._world.store.get(kind, namespace, name), outgoing(kind, name), None

    async def _replies(self, obj: Object, retry: Retry, dead_letter: Mapping[str, Any] | None) -> Hub | None:
        reply = (obj.get("spec") or {}).get("reply")
        metadata = obj["metadata"]
        if not reply:
            return None
        name = f"{metadata['name']} (reply)"
        return await self._world.outlets.open(metadata["uid"], metadata["namespace"], name, reply, retry, dead_letter)
