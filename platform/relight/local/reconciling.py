"""Level-triggered reconciling: a set of keys that need a look, and one worker that looks.

A change of an object only *marks* its key; the worker then reads the present state and acts on it. Marks of one key
collapse, so a burst of changes costs one look, and a look that fails is tried again later with a growing delay, so that
no error is final and none is a busy loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from relight.base.tasks import Tasks

log = logging.getLogger("relight.local")

Key = TypeVar("Key", bound=Hashable)

FIRST_RETRY = 0.05
"""Seconds before the first retry of a failed look; doubled with each failure in a row."""
LAST_RETRY = 30.0
"""The longest wait between retries, in seconds."""


class Queue(Generic[Key]):
    """Keys waiting for a look, each at most once, in the order they were first marked."""

    def __init__(self, name: str, look: Callable[[Key], Awaitable[None]], tasks: Tasks) -> None:
        self.name = name
        self._look = look
        self._tasks = tasks
        self._waiting: dict[Key, None] = {}
        self._failures: dict[Key, int] = {}
        self._marked = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def mark(self, key: Key, *, first: bool = False) -> None:
        """This key needs a look. ``first``: before all others, for somebody waits."""
        if first:
            self._waiting.pop(key, None)
            self._waiting = {key: None, **self._waiting}
        else:
            self._waiting[key] = None
        self._idle.clear()
        self._marked.set()

    async def idle(self) -> None:
        """Wait until no key waits and none is being looked at (retries that are due later do not count)."""
        await self._idle.wait()

    async def run(self) -> None:
        """Look at marked keys until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            if not self._waiting:
                self._idle.set()
                self._marked.clear()
                await self._marked.wait()
            key = next(iter(self._waiting))
            del self._waiting[key]
            try:
                await self._look(key)
            except asyncio.CancelledError:
                raise
            except Exception:
                failures = self._failures[key] = self._failures.get(key, 0) + 1
                delay = min(LAST_RETRY, FIRST_RETRY * 2 ** (failures - 1))
                log.exception("reconcile.failed queue=%s key=%s: looked at again in %.2f s", self.name, key, delay)
                loop.call_later(delay, self.mark, key)
            else:
                self._failures.pop(key, None)
            # One look may be long; others on the loop (the data path above all) go first.
            await asyncio.sleep(0)
