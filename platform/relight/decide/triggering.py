"""What the annotations of a Trigger, or of a Subscription, say about its deliveries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from relight.base.errors import Problem

Dedup = Literal["on", "off", "durable"]

CONCURRENCY = 8
"""Deliveries at once per Trigger, unless the annotation ``relight.dev/concurrency`` says otherwise."""
DEFAULT_ORDERING_KEY = "partitionkey"
"""The extension that Knative's Kafka broker orders by."""

_CONCURRENCY = "relight.dev/concurrency"
_PAUSED = "relight.dev/paused"
_DEDUP = "relight.dev/dedup"
_ORDER = "kafka.eventing.knative.dev/delivery.order"
_ORDERING_KEY = "relight.dev/ordering-key"


@dataclass(frozen=True)
class Options:
    """How deliveries are made; the fields are those of ``Subscription``, which tells more of them."""

    concurrency: int = CONCURRENCY
    paused: bool = False
    dedup: Dedup = "on"
    ordering_key: str | None = None


def read(given: Mapping[str, str], problems: list[Problem]) -> Options:
    """What annotations say. Every one that is wrong is added to ``problems``, and counts as not given."""

    def wrong(name: str, expected: str) -> None:
        problems.append(Problem(f"metadata.annotations[{name}]", f"{expected} was expected, got {given[name]!r}"))

    concurrency = given.get(_CONCURRENCY, str(CONCURRENCY))
    if not (concurrency.isascii() and concurrency.isdecimal()) or not 1 <= int(concurrency) <= 1000:
        wrong(_CONCURRENCY, "an integer from 1 to 1000")
        concurrency = str(CONCURRENCY)
    if given.get(_PAUSED, "false") not in ("true", "false"):
        wrong(_PAUSED, '"true" or "false"')
    dedup = given.get(_DEDUP, "on")
    if dedup not in ("on", "off", "durable"):
        wrong(_DEDUP, "on, off or durable")
        dedup = "on"
    if given.get(_ORDER, "unordered") not in ("ordered", "unordered"):
        wrong(_ORDER, "ordered or unordered")
    key = given.get(_ORDERING_KEY, DEFAULT_ORDERING_KEY)
    if not (key.isascii() and key.isalnum() and key == key.lower()):
        wrong(_ORDERING_KEY, "the name of an attribute")
        key = DEFAULT_ORDERING_KEY
    # A key by itself says as much as "ordered" does.
    ordered = given.get(_ORDER) == "ordered" or _ORDERING_KEY in given
    return Options(int(concurrency), given.get(_PAUSED) == "true", cast(Dedup, dedup), key if ordered else None)
