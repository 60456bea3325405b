"""Triggers as the broker needs them: who wants which events, and how they are to be delivered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from relight.base.errors import BadInput, Problem
from relight.decide import filters
from relight.decide.delivery import Retry
from relight.decide.filters import Filter
from relight.wire.cloudevents import Event

CONCURRENCY = 8
"""Deliveries at once per Trigger, unless the annotation ``relight.dev/concurrency`` says otherwise."""


@dataclass(frozen=True)
class Subscription:
    """A Trigger, checked and built. The destinations stay as they are written; they are resolved at each delivery."""

    uid: str
    namespace: str
    name: str
    broker: str
    filter: Filter
    retry: Retry = field(default_factory=Retry)
    subscriber: Mapping[str, Any] = field(default_factory=dict)
    dead_letter: Mapping[str, Any] | None = None
    concurrency: int = CONCURRENCY

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @classmethod
    def of(cls, trigger: Mapping[str, Any], broker: Mapping[str, Any] | None = None) -> Subscription:
        """From a Trigger object, and its Broker for what the Trigger leaves open. BadInput names every wrong field."""
        metadata, spec = trigger["metadata"], trigger.get("spec") or {}
        problems: list[Problem] = []
        given = spec.get("filters")
        attributes = (spec.get("filter") or {}).get("attributes")
        problems += filters.validate(given) if given else filters.validate_attributes(attributes)
        delivery = spec.get("delivery") or {}
        inherited = ((broker or {}).get("spec") or {}).get("delivery") or {}
        retry = Retry()
        try:
            retry = Retry.of(delivery, inherited)
        except BadInput as error:
            problems += error.problems
        annotation = (metadata.get("annotations") or {}).get("relight.dev/concurrency", str(CONCURRENCY))
        if not annotation.isdecimal() or not 1 <= int(annotation) <= 1000:
            path = "metadata.annotations[relight.dev/concurrency]"
            problems.append(Problem(path, f"an integer from 1 to 1000 was expected, got {annotation!r}"))
        if not spec.get("subscriber"):
            problems.append(Problem("spec.subscriber", "a ref or a uri was expected"))
        if problems:
            raise BadInput.of(problems)
        return cls(
            uid=metadata["uid"],
            namespace=metadata["namespace"],
            name=metadata["name"],
            broker=spec.get("broker") or "default",
            filter=filters.compile(given, attributes),
            retry=retry,
            subscriber=spec["subscriber"],
            dead_letter=delivery.get("deadLetterSink") or inherited.get("deadLetterSink"),
            concurrency=int(annotation),
        )


class Table:
    """Brokers and the Triggers on them, as they are now."""

    def __init__(self) -> None:
        self._brokers: set[tuple[str, str]] = set()
        self._subscriptions: dict[str, Subscription] = {}

    def has_broker(self, namespace: str, name: str) -> bool:
        return (namespace, name) in self._brokers

    def add_broker(self, namespace: str, name: str) -> None:
        self._brokers.add((namespace, name))

    def remove_broker(self, namespace: str, name: str) -> None:
        self._brokers.discard((namespace, name))

    def put(self, subscription: Subscription) -> None:
        self._subscriptions[subscription.uid] = subscription

    def remove(self, uid: str) -> None:
        self._subscriptions.pop(uid, None)

    def get(self, uid: str) -> Subscription | None:
        return self._subscriptions.get(uid)

    def uids(self) -> list[str]:
        return list(self._subscriptions)

    def matching(self, namespace: str, broker: str, event: Event) -> list[Subscription]:
        """The Triggers on a broker that want an event."""
        return [
            subscription
            for subscription in self._subscriptions.values()
            if (subscription.namespace, subscription.broker) == (namespace, broker)
            and subscription.filter.matches(event)
        ]
