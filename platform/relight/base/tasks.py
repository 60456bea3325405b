"""Guarded asyncio tasks: named, their failure logged at the moment it happens, stopped in one place.

``asyncio.create_task`` alone keeps only a weak reference and tells nobody of a failure until the task is awaited. Every
background task of the platform is started through a ``Tasks`` group instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger("relight.tasks")


class Tasks:
    """A group of background tasks with one owner, who stops it.

    A task that fails is logged with its traceback; where ``on_failure`` was given it is also told, once per failure, so
    that the owner can end the process rather than limp on.
    """

    def __init__(self, name: str, on_failure: Any = None) -> None:
        self.name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._on_failure = on_failure

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start a task; ``name`` appears in the log and in ``asyncio``'s own reports."""
        task = asyncio.get_running_loop().create_task(coroutine, name=f"{self.name}/{name}")
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            log.error("task.failed name=%s error=%r", task.get_name(), error, exc_info=error)
            if self._on_failure is not None:
                self._on_failure(task.get_name(), error)

    def __len__(self) -> int:
        return len(self._tasks)

    async def stop(self, timeout: float = 5.0) -> None:
        """Cancel all and wait, at most ``timeout`` seconds; what does not end is named in the log. Idempotent."""
        pending = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in pending:
            task.cancel()
        if pending:
            _, stuck = await asyncio.wait(pending, timeout=timeout)
            for task in stuck:
                log.warning(
                    "task.stuck name=%s: it did not end within %.0f s of its cancellation", task.get_name(), timeout
                )
