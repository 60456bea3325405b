"""The deadlines that requests came with, the earliest first."""

from __future__ import annotations

import weakref
from heapq import heapify, heappop, heappush

from relight.runtime.tickets import Ticket

SWEEP = 1024
"""Deadlines that are kept before those of requests that are answered are looked for; most are, long before theirs."""


class Timeouts:
    """Not for several threads. A request that is answered is let go of, whatever its deadline."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, weakref.ref[Ticket]]] = []
        self._sweep_at = SWEEP

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, at: float, ticket: Ticket) -> None:
        heappush(self._heap, (at, id(ticket), weakref.ref(ticket)))
        if len(self._heap) > self._sweep_at:
            self._heap = [entry for entry in self._heap if _alive(entry[2]) is not None]
            heapify(self._heap)
            self._sweep_at = max(SWEEP, 2 * len(self._heap))

    def due(self, now: float) -> list[Ticket]:
        """Those not answered whose time is over; they are forgotten."""
        late = []
        while self._heap:
            at, _, reference = self._heap[0]
            ticket = _alive(reference)
            if ticket is not None:
                if at > now:
                    break
                late.append(ticket)
            heappop(self._heap)
        return late

    @property
    def earliest(self) -> float | None:
        """When the next one is due, as far as is known."""
        return self._heap[0][0] if self._heap else None


def _alive(reference: weakref.ref[Ticket]) -> Ticket | None:
    ticket = reference()
    return None if ticket is None or ticket.done() else ticket
