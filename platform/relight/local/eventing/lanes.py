"""A lane: the deliveries of one Trigger that are still to do, and how many of them are under way.

In memory a waiting delivery is a few numbers; the event itself is read from the log when its turn comes.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from relight.base.tasks import Tasks
from relight.local.eventing.records import Letter
from relight.local.eventing.triggers import Subscription

UNRESOLVED_PAUSE = 1.0
"""Seconds between two looks at a Trigger whose subscriber has no address; no attempt is counted meanwhile."""


@dataclass(order=True, slots=True)
class Item:
    """A delivery in its lane, in the order of ``due`` (the loop's clock) and then of the events."""

    due: float
    seq: int
    attempt: int = field(default=0, compare=False)
    letter: Letter | None = field(default=None, compare=False)


class Lane:
    """Starts the deliveries of one Trigger when they are due, at most ``concurrency`` at once."""

    def __init__(
        self,
        subscription: Subscription,
        is_reachable: Callable[[Subscription], bool],
        deliver: Callable[[Lane, Item], Coroutine[Any, Any, None]],
        tasks: Tasks,
    ) -> None:
        self.subscription = subscription
        self._is_reachable = is_reachable
        self._deliver = deliver
        self._tasks = tasks
        self._waiting: list[Item] = []
        self._changed = asyncio.Event()
        self.running = 0

    def __len__(self) -> int:
        return len(self._waiting) + self.running

    def add(self, item: Item) -> None:
        heapq.heappush(self._waiting, item)
        self._changed.set()

    def wake(self) -> None:
        """Something changed that may let a delivery start."""
        self._changed.set()

    async def run(self) -> None:
        """Start what is due until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            pause = self._pause(loop.time())
            if pause == 0:
                item = heapq.heappop(self._waiting)
                self.running += 1
                self._tasks.spawn(self._one(item), f"{self.subscription}/{item.seq}")
                continue
            self._changed.clear()
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _pause(self, now: float) -> float | None:
        """Seconds until the first delivery may start: 0 for now, None for not before something changes."""
        if not self._waiting or self.running >= self.subscription.concurrency:
            return None
        due = self._waiting[0].due
        if due > now:
            return due - now
        # What goes to the dead-letter sink does not need the subscriber.
        if self._waiting[0].letter is None and not self._is_reachable(self.subscription):
            return UNRESOLVED_PAUSE
        return 0

    async def _one(self, item: Item) -> None:
        try:
            await self._deliver(self, item)
        finally:
            self.running -= 1
            self._changed.set()
