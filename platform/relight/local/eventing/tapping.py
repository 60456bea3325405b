"""Taps: whoever wants to see the events that pass, as they pass. A slow reader misses some and is told how many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from relight.local.eventing.records import Incoming

KEPT = 1000
"""Events that wait for one reader at most."""
TAPS = 32
"""Readers at once at most."""


class Tap:
    """One reader's queue. ``missed`` counts what did not fit."""

    def __init__(self, wants: Callable[[Incoming], bool]) -> None:
        self._wants = wants
        self._queue: asyncio.Queue[Incoming | None] = asyncio.Queue(KEPT)
        self.missed = 0
        self.ended = False
        """No more will come."""

    def offer(self, incoming: Incoming) -> None:
        if not self._wants(incoming):
            return
        try:
            self._queue.put_nowait(incoming)
        except asyncio.QueueFull:
            self.missed += 1

    async def next(self, timeout: float) -> Incoming | None:
        """The next event; None if there is none for so many seconds, or no more."""
        if self.ended:
            return None
        try:
            async with asyncio.timeout(timeout):
                return await self._queue.get()
        except TimeoutError:
            return None

    def end(self) -> None:
        self.ended = True
        with suppress(asyncio.QueueFull):
            self._queue.put_nowait(None)


class Taps:
    """The readers that are there now."""

    def __init__(self) -> None:
        self._taps: list[Tap] = []

    def __len__(self) -> int:
        return len(self._taps)

    def offer(self, incoming: Incoming) -> None:
        """An event was accepted."""
        for tap in self._taps:
            tap.offer(incoming)

    def end(self) -> None:
        """The broker stops: readers get nothing more."""
        for tap in self._taps:
            tap.end()

    @contextmanager
    def open(self, wants: Callable[[Incoming], bool]) -> Iterator[Tap]:
        """A tap on the events that ``wants`` says yes to, until the end of the block."""
        tap = Tap(wants)
        self._taps.append(tap)
        try:
            yield tap
        finally:
            self._taps.remove(tap)
