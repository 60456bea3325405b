"""Deadlines of what waits in a process: one thread for all of them, and none before the first."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable


class Deadlines:
    """Calls back when a time has come, in a thread of its own. Callbacks must be quick and must not raise."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call back in so many seconds. What has become idle by then must see so itself."""
        with self._changed:
            if self._stopped:
                return
            heapq.heappush(self._heap, (time.monotonic() + seconds, next(self._numbers), call))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify()

    def stop(self) -> None:
        """Forget what is to come. Idempotent."""
        with self._changed:
            self._stopped = True
            self._heap.clear()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopped and (not self._heap or self._heap[0][0] > time.monotonic()):
                    self._changed.wait(self._heap[0][0] - time.monotonic() if self._heap else None)
                if self._stopped:
                    return
                call = heapq.heappop(self._heap)[2]
            call()
