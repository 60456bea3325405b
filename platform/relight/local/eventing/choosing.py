"""Which deliveries or events somebody means: by namespace, hub, Trigger, id, type, reason, or a CESQL expression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from relight.base.errors import BadInput, Problem
from relight.decide import filters
from relight.decide.filters import Filter
from relight.wire.cloudevents import Event

MOST = 10_000
LIMIT = 1000
"""Rows of an answer, where nothing else is asked for."""


@dataclass(frozen=True)
class Choice:
    """All that is given must hold; None: it does not matter."""

    namespace: str | None = None
    broker: str | None = None
    trigger: str | None = None
    id: str | None = None
    type: str | None = None
    reason: str | None = None
    """A part of the reason, whatever its case."""
    where: Filter | None = None
    limit: int = LIMIT

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Choice:
        """From a request's parameters. BadInput names every one that is wrong or unknown."""
        problems = [Problem(name, "no such parameter") for name in given if name not in cls.__dataclass_fields__]
        where = given.get("where")
        if where:
            problems += [Problem("where", problem.message) for problem in filters.validate([{"cesql": where}])]
        limit = given.get("limit", str(LIMIT))
        if not (limit.isascii() and limit.isdecimal()) or not 1 <= int(limit) <= MOST:
            problems.append(Problem("limit", f"a number from 1 to {MOST} was expected, got {limit!r}"))
        if problems:
            raise BadInput.of(problems)
        texts = {name: given.get(name) or None for name in ("namespace", "broker", "trigger", "id", "type", "reason")}
        return cls(**texts, where=filters.compile([{"cesql": where}]) if where else None, limit=int(limit))

    def wants_event(self, namespace: str, broker: str, event: Event) -> bool:
        return (
            self.namespace in (None, namespace)
            and self.broker in (None, broker)
            and self.id in (None, event.id)
            and self.type in (None, event.type)
            and (self.where is None or self.where.matches(event))
        )

    def wants(self, namespace: str, broker: str, event: Event, trigger: str, reason: str) -> bool:
        """Whether a delivery is meant; ``trigger`` is its Trigger's name; behind a source's stands its kind."""
        return (
            self.trigger in (None, trigger, trigger.partition(" (")[0])
            and (self.reason is None or self.reason.casefold() in reason.casefold())
            and self.wants_event(namespace, broker, event)
        )
