"""Requests that wait for a model to be loaded, and the failures that are told to all who ask meanwhile.

One load is under way for all who wait for the same model. Who waits is bounded in number and time. A load that failed
is not tried again for a while: it must not become a storm, and may heal by itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from relight.base.errors import (
    Deadline,
    LoadFailed,
    NoSpace,
    NotFound,
    NotReady,
    OverBudget,
    Overloaded,
    RelightError,
)
from relight.runtime.copies import Copy
from relight.runtime.deadlines import Deadlines
from relight.runtime.workers import RETRY_AFTER

FAILED_FOR = 30.0
"""Seconds in which a load that failed is not tried again."""
UNKNOWN_FOR = 1.0
"""Seconds in which an unknown model is not looked for again."""
_TOLD_AS_THEY_ARE = (NotFound, OverBudget, NoSpace, Deadline, Overloaded, NotReady, LoadFailed)
_PASSING = (Deadline, Overloaded, NotReady)

Key = tuple[str, int | None]
"""A model's name and version; None: the newest that can be loaded."""


@dataclass(eq=False)
class Coming:
    """A load that is under way, and who waits for it."""

    key: Key
    waiters: list[Future[Copy]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.key[0]

    @property
    def version(self) -> int | None:
        return self.key[1]


@dataclass(frozen=True, slots=True)
class _Failure:
    error: RelightError
    until: float

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.until


class WaitingRoom:
    """Who waits for what. ``hold`` marks a copy as in use, once for each who gets it."""

    def __init__(self, limit: int, patience: float, hold: Callable[[Copy], None]) -> None:
        self._limit = limit
        self._patience = patience
        self._hold = hold
        self._lock = threading.Lock()
        self._coming: dict[Key, Coming] = {}
        self._failures: dict[Key, _Failure] = {}
        self._deadlines = Deadlines("model-wait")

    @property
    def waiting(self) -> int:
        with self._lock:
            return self._count()

    def join(self, key: Key, *, bounded: bool) -> tuple[Future[Copy], Coming | None]:
        """A future to wait with; and, for the first who waits, the load that is to be begun.

        Raises why it failed a short while ago; Overloaded when too many wait. ``bounded`` False: for ever.
        """
        self.check(key)
        future: Future[Copy] = Future()
        with self._lock:
            if self._count() >= self._limit:
                raise Overloaded(f"{self._limit} requests wait for models to be loaded", retry_after=RETRY_AFTER)
            coming = self._coming.get(key)
            begins = coming is None
            if coming is None:
                coming = self._coming[key] = Coming(key)
            coming.waiters.append(future)
        if bounded:
            self._deadlines.after(self._patience, lambda: self._late(coming, future))
        return future, coming if begins else None

    def arrived(self, coming: Coming, copy: Copy) -> None:
        """Give the copy to all who wait for it."""
        for future in self._leave(coming):
            if future.set_running_or_notify_cancel():
                self._hold(copy)
                future.set_result(copy)

    def failed(self, coming: Coming, version: int | None, error: RelightError) -> None:
        """Tell all who wait, and who asks within a while. ``version``: the one that it was, where it is known."""
        self.remember(coming.key, error)
        if version is not None:
            self.remember((coming.name, version), error)
        for future in self._leave(coming):
            if future.set_running_or_notify_cancel():
                future.set_exception(again(error))

    def check(self, key: Key) -> None:
        """Raise why a model could not be loaded a short while ago."""
        with self._lock:
            failure = self._failures.get(key)
        if failure is not None and not failure.is_over:
            raise again(failure.error)

    def newest(self, name: str, versions: Iterable[int]) -> int:
        """The newest version that has not failed a short while ago; raises why the newest has, if all have."""
        with self._lock:
            failures = {version: self._failures.get((name, version)) for version in versions}
        failed = {version: failure.error for version, failure in failures.items() if failure and not failure.is_over}
        good = [version for version in failures if version not in failed]
        if not good:
            raise again(failed[max(failed)])
        return max(good)

    def remember(self, key: Key, error: RelightError) -> None:
        """Tell this error to who asks within a while, unless it passes by itself."""
        if isinstance(error, _PASSING):
            return
        until = time.monotonic() + (UNKNOWN_FOR if isinstance(error, NotFound) else FAILED_FOR)
        with self._lock:
            for old in [old for old, failure in self._failures.items() if failure.is_over]:
                del self._failures[old]
            self._failures[key] = _Failure(error, until)

    def forgive(self, name: str) -> None:
        """Try again what has failed of a model: it was changed."""
        with self._lock:
            for key in [key for key in self._failures if key[0] == name]:
                del self._failures[key]

    def close(self) -> None:
        """Refuse all who wait. Idempotent."""
        self._deadlines.stop()
        with self._lock:
            coming = list(self._coming.values())
        for one in coming:
            self.failed(one, None, NotReady("this process is stopping", retry_after=RETRY_AFTER))

    def _count(self) -> int:
        return sum(len(coming.waiters) for coming in self._coming.values())

    def _leave(self, coming: Coming) -> list[Future[Copy]]:
        with self._lock:
            if self._coming.get(coming.key) is coming:
                del self._coming[coming.key]
            waiters, coming.waiters = coming.waiters, []
        return waiters

    def _late(self, coming: Coming, future: Future[Copy]) -> None:
        with self._lock:
            if future not in coming.waiters:
                return
            coming.waiters.remove(future)
        if future.set_running_or_notify_cancel():
            message = f"model {coming.name!r} was not loaded within {self._patience:g} s"
            future.set_exception(Deadline(message, retry_after=RETRY_AFTER))


def unloaded(name: str) -> NotReady:
    """What a request for a model is told that somebody unloaded."""
    return NotReady(f"model {name!r} was unloaded; POST /v2/repository/models/{name}/load loads it again")


def told(name: str, error: Exception) -> RelightError:
    """What may be told to who waits: the mistakes of a configuration are not those of a request."""
    if isinstance(error, _TOLD_AS_THEY_ARE):
        return error
    reason = error.message if isinstance(error, RelightError) else f"{type(error).__name__}; the log says where"
    return LoadFailed(f"model {name!r} cannot be loaded: {reason}")


def again(error: RelightError) -> RelightError:
    """The same error, once more: an exception that several threads raise would gather their tracebacks."""
    return type(error)(error.message, param=error.param, retry_after=error.retry_after)
