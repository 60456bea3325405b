"""The event that has a replica make itself ready before anybody calls: ``dev.relight.prewarm.v1``.

A function answers it with 204 once its model is loaded and warmed up, and runs nothing of its author's. Whoever counts
calls to learn from them leaves these out.
"""

from __future__ import annotations

import json

from relight.wire.cloudevents import JSON, Event

TYPE = "dev.relight.prewarm.v1"
SOURCE = "/relight/warm"
EXTENSION = "relightprewarm"
"""``"true"`` makes an event of any type one: for sources that have a type of their own, such as PingSource."""


def is_prewarm(event: Event) -> bool:
    """Whether an event asks for nothing but to be ready."""
    return event.type == TYPE or event.get(EXTENSION) == "true"


def event(id_: str, function: str, reason: str, expected: str, model: str | None = None) -> Event:
    """For a function, with why it is sent and when the call is expected (RFC 3339); ``model``: one of several."""
    data = {"function": function, "reason": reason, "expected": expected} | ({"model": model} if model else {})
    return Event.of(TYPE, SOURCE, json.dumps(data).encode(), id=id_, datacontenttype=JSON)
