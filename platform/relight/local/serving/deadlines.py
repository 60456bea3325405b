"""Deadlines of many connections under one timer.

A timer per request costs more than the request's routing. Each connection has one number, the time at which it must be
looked at; one timer of the loop is set to the earliest. Moving a deadline back costs a comparison.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

LONGEST_SLEEP = 1.0
"""Seconds after which the deadlines are looked through again although none was due: they may have been moved back."""
SHORTEST_SLEEP = 0.005
"""Seconds between two looks, at least; the precision of a deadline."""


class Watched(Protocol):
    deadline: float

    def on_deadline(self, now: float) -> None:
        """The deadline has passed. It must move it, or leave the set."""


class Deadlines:
    """``watched`` is open for the owners to add to and discard from; ``arm`` must be told of an earlier deadline."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.watched: set[Watched] = set()
        self.next_look = float("inf")
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None

    def arm(self, at: float) -> None:
        """Look at ``at``, or before. Callers on a hot path compare with ``next_look`` first."""
        if at >= self.next_look:
            return
        if self._timer is not None:
            self._timer.cancel()
        now = self._clock()
        self.next_look = min(max(at, now + SHORTEST_SLEEP), now + LONGEST_SLEEP)
        self._timer = asyncio.get_running_loop().call_later(self.next_look - now, self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self.next_look = float("inf")

    def _look(self) -> None:
        now = self._clock()
        self._timer = None
        self.next_look = float("inf")
        for one in [one for one in self.watched if one.deadline <= now]:
            one.on_deadline(now)
        earliest = min((one.deadline for one in self.watched), default=None)
        if earliest is not None:
            self.arm(earliest)
