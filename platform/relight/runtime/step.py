"""Steps: JSON or an event in, JSON or an event out."""

from __future__ import annotations

from typing import Any

from relight.runtime.function import Function
from relight.wire.cloudevents import Event


class Step(Function):
    """A step of a chain: the author writes ``run``, and ``load`` where there is something to load."""

    concurrency: int = 8
    """How many calls of ``run`` may be going on at once, each in a thread."""

    def run(self, data: Any, event: Event | None) -> Any:
        """Work on the JSON of a request, or on an event's data; ``event`` is None for plain requests.

        Returns what can be written as JSON, an ``Event``, or None for "nothing to say" (204). What it raises is a 500
        without its text, except the errors of ``relight.sdk`` such as ``BadInput``, which are told to the caller.
        """
        raise NotImplementedError(f"{type(self).__name__} has no run")
