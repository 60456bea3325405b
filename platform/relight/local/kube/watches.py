"""Watches: a bounded queue from the store to one watcher.

A watcher that does not keep up is closed with an error instead of being allowed to grow; it lists again and watches
from there, as any Kubernetes client does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from relight.base.errors import Overloaded

ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]

BACKLOG = 2048
"""Changes that may wait for one watcher: some seconds of the busiest platform, a few MB at most."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one object. ``object`` is shared: copy it before changing it."""

    type: ChangeType
    object: dict[str, Any]
    was: Mapping[str, str] | None = None
    """The labels before the change, so that a watch by label can tell who left its selection; None: was not there."""

    @property
    def version(self) -> int:
        """The resourceVersion at which this change happened."""
        return int(self.object["metadata"]["resourceVersion"])


class Watch(AsyncIterator[Change]):
    """Changes of one kind, in order. Ends when closed; raises Overloaded when it fell too far behind."""

    def __init__(self, initial: Iterable[Change], on_close: Callable[[Watch], None], backlog: int = BACKLOG) -> None:
        self._changes: deque[Change] = deque(initial)
        self._limit = len(self._changes) + backlog
        self._on_close = on_close
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self._error: Overloaded | None = None

    @property
    def pending(self) -> int:
        """How many changes can be had without waiting."""
        return len(self._changes)

    def push(self, change: Change) -> None:
        """Called by the store after its commit."""
        if self._closed:
            return
        if len(self._changes) >= self._limit:
            self._error = Overloaded(f"the watcher fell {self._limit} changes behind; list again and watch from there")
            self._changes.clear()
            self.close()
            return
        self._changes.append(change)
        self._wake()

    def close(self) -> None:
        """End the watch. What is queued can still be taken; then the iteration ends."""
        if self._closed:
            return
        self._closed = True
        self._on_close(self)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def __anext__(self) -> Change:
        while not self._changes:
            if self._error is not None:
                raise self._error
            if self._closed:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._changes.popleft()
