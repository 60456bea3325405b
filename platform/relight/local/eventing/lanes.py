"""A lane: the deliveries of one Trigger that are still to do, and how many of them are under way.

In memory a waiting delivery is a few numbers; the event itself is read from the log when its turn comes.

Where the Trigger orders its events by a key, only the oldest delivery of each key may start; the others of that key are
held behind it until it is done or dead-lettered, however often it is tried. Other keys do not wait for it.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine, Mapping
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
    key: str | None = field(default=None, compare=False)
    """What it is ordered by; None: nothing. A dead letter on its way to the sink holds up nobody."""


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
        self._held: dict[str, list[tuple[int, Item]]] = {}
        """Per key whose turn is taken: what waits behind it, by event."""
        self._held_count = 0
        self._at_work: set[int] = set()
        self._keys_at_work: dict[int, str] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting) + self._held_count + len(self._at_work)

    def add(self, item: Item) -> None:
        """A delivery that is to be done."""
        key = item.key
        if key is not None and item.letter is None:
            if key in self._held:
                heapq.heappush(self._held[key], (item.seq, item))
                self._held_count += 1
                return
            self._held[key] = []
        heapq.heappush(self._waiting, item)
        self._changed.set()

    def again(self, item: Item) -> None:
        """A delivery that is under way is to be tried once more; it keeps its turn."""
        item.key = self._keys_at_work.pop(item.seq, None)
        heapq.heappush(self._waiting, item)
        self._changed.set()

    def wake(self) -> None:
        """Something changed that may let a delivery start."""
        self._changed.set()

    def reorder(self, keys: Mapping[int, str | None]) -> None:
        """The Trigger orders otherwise from now on: ``keys`` by event. What is under way takes its turn first.

        What came after ``keys`` were read is not among them, and has the right key already.
        """
        items = [*self._waiting, *(item for behind in self._held.values() for _, item in behind)]
        self._waiting, self._held, self._held_count = [], {}, 0
        begun, self._keys_at_work = self._keys_at_work, {}
        for seq in self._at_work:
            key = keys.get(seq, begun.get(seq))
            if key is not None:
                self._keys_at_work[seq] = key
                self._held.setdefault(key, [])
        for item in sorted(items, key=lambda one: one.seq):
            item.key = keys.get(item.seq, item.key) if item.letter is None else None
            self.add(item)
        self._changed.set()

    async def run(self) -> None:
        """Start what is due until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            pause = self._pause(loop.time())
            if pause == 0:
                item = heapq.heappop(self._waiting)
                self._at_work.add(item.seq)
                if item.key is not None and item.letter is None:
                    self._keys_at_work[item.seq] = item.key
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
        subscription = self.subscription
        if not self._waiting or subscription.paused or len(self._at_work) >= subscription.concurrency:
            return None
        due = self._waiting[0].due
        if due > now:
            return due - now
        # What goes to the dead-letter sink does not need the subscriber.
        if self._waiting[0].letter is None and not self._is_reachable(subscription):
            return UNRESOLVED_PAUSE
        return 0

    async def _one(self, item: Item) -> None:
        try:
            await self._deliver(self, item)
        finally:
            self._at_work.discard(item.seq)
            key = self._keys_at_work.pop(item.seq, None)
            if key is not None:
                self._next_of(key)
            self._changed.set()

    def _next_of(self, key: str) -> None:
        """The delivery whose turn it was is over: the oldest that waits behind it is next."""
        behind = self._held[key]
        if behind:
            _, item = heapq.heappop(behind)
            self._held_count -= 1
            heapq.heappush(self._waiting, item)
        else:
            del self._held[key]
