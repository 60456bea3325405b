"""Who wants which events, and how they are to be delivered: Triggers on Brokers, Subscriptions on channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from relight.base.errors import BadInput, Problem
from relight.decide import filters, triggering
from relight.decide.delivery import Retry
from relight.decide.filters import Filter
from relight.decide.triggering import CONCURRENCY, Dedup
from relight.local.eventing.naming import Hub
from relight.wire.cloudevents import Event

ALL = Filter(())
"""What a Subscription wants: every event of its channel."""


@dataclass(frozen=True)
class Subscription:
    """A Trigger or a Subscription, checked and built. Destinations stay as they are written, resolved when used."""

    uid: str
    namespace: str
    name: str
    broker: str
    """The hub's name."""
    filter: Filter
    retry: Retry = field(default_factory=Retry)
    subscriber: Mapping[str, Any] = field(default_factory=dict)
    """Empty: events go on as they are, to the hub for replies."""
    dead_letter: Mapping[str, Any] | None = None
    concurrency: int = CONCURRENCY
    replies: Hub | None = None
    """Where replies go; None: nowhere."""
    paused: bool = False
    """Nothing is delivered; events are kept until it goes on."""
    ordering_key: str | None = None
    """Events of one value of this attribute are delivered one after another; None: in no order."""
    keyless: Literal["ordered", "free"] = "ordered"
    """Events without that attribute: one after another too, or in no order."""
    dedup: Dedup = "on"
    """*off*: each delivery is run and answered anew. *on*: the function runs an event once as long as it remembers it,
    and one answer is published. *durable*: an event that was answered before is not even delivered."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def key_of(self, event: Event) -> str | None:
        """What an event is ordered by; None where order does not matter."""
        if self.ordering_key is None:
            return None
        key = event.get(self.ordering_key)
        return None if key is None and self.keyless == "free" else str("" if key is None else key)

    @classmethod
    def of(cls, trigger: Mapping[str, Any], broker: Mapping[str, Any] | None = None) -> Subscription:
        """From a Trigger object, and its Broker for what the Trigger leaves open. BadInput names every wrong field."""
        metadata, spec = trigger["metadata"], trigger.get("spec") or {}
        problems: list[Problem] = []
        given = spec.get("filters")
        attributes = (spec.get("filter") or {}).get("attributes")
        problems += filters.validate(given) if given else filters.validate_attributes(attributes)
        if not spec.get("subscriber"):
            problems.append(Problem("spec.subscriber", "a ref or a uri was expected"))
        fields = _delivery(spec, broker, problems) | asdict(
            triggering.read(metadata.get("annotations") or {}, problems)
        )
        if problems:
            raise BadInput.of(problems)
        name = spec.get("broker") or "default"
        return cls(
            uid=metadata["uid"],
            namespace=metadata["namespace"],
            name=metadata["name"],
            broker=name,
            filter=filters.compile(given, attributes),
            subscriber=spec["subscriber"],
            replies=(metadata["namespace"], name),
            **fields,
        )

    @classmethod
    def of_channel(
        cls,
        subscription: Mapping[str, Any],
        hub: str,
        replies: Hub | None,
        channel: Mapping[str, Any] | None = None,
    ) -> Subscription:
        """From a Subscription object on the channel that is the hub ``hub``; ``channel`` for what it leaves open."""
        metadata, spec = subscription["metadata"], subscription.get("spec") or {}
        problems: list[Problem] = []
        if not spec.get("subscriber") and not spec.get("reply"):
            problems.append(Problem("spec", "a subscriber or a reply was expected"))
        fields = _delivery(spec, channel, problems) | asdict(
            triggering.read(metadata.get("annotations") or {}, problems)
        )
        if problems:
            raise BadInput.of(problems)
        return cls(
            uid=metadata["uid"],
            namespace=metadata["namespace"],
            name=metadata["name"],
            broker=hub,
            filter=ALL,
            subscriber=spec.get("subscriber") or {},
            replies=replies,
            **fields,
        )


def _delivery(spec: Mapping[str, Any], hub: Mapping[str, Any] | None, problems: list[Problem]) -> dict[str, Any]:
    own = spec.get("delivery") or {}
    inherited = ((hub or {}).get("spec") or {}).get("delivery") or {}
    retry = Retry()
    try:
        retry = Retry.of(own, inherited)
    except BadInput as error:
        problems += error.problems
    return {"retry": retry, "dead_letter": own.get("deadLetterSink") or inherited.get("deadLetterSink")}


class Table:
    """Hubs and the subscriptions on them, as they are now."""

    def __init__(self) -> None:
        self._hubs: set[Hub] = set()
        self._subscriptions: dict[str, Subscription] = {}
        self._by_hub: dict[Hub, dict[str, Subscription]] = {}

    def has_hub(self, hub: Hub) -> bool:
        return hub in self._hubs

    def add_hub(self, hub: Hub) -> None:
        self._hubs.add(hub)

    def remove_hub(self, hub: Hub) -> None:
        self._hubs.discard(hub)

    def put(self, subscription: Subscription) -> None:
        self.remove(subscription.uid)
        self._subscriptions[subscription.uid] = subscription
        hub = (subscription.namespace, subscription.broker)
        self._by_hub.setdefault(hub, {})[subscription.uid] = subscription

    def remove(self, uid: str) -> None:
        gone = self._subscriptions.pop(uid, None)
        if gone is not None:
            on_hub = self._by_hub[gone.namespace, gone.broker]
            del on_hub[uid]
            if not on_hub:
                del self._by_hub[gone.namespace, gone.broker]

    def get(self, uid: str) -> Subscription | None:
        return self._subscriptions.get(uid)

    def uids(self) -> list[str]:
        return list(self._subscriptions)

    def all(self) -> list[Subscription]:
        return list(self._subscriptions.values())

    def matching(self, hub: Hub, event: Event) -> list[Subscription]:
        """The subscriptions on a hub that want an event."""
        return [one for one in self._by_hub.get(hub, {}).values() if one.filter.matches(event)]
