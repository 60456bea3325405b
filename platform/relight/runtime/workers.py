"""Threads: a bounded pool for steps and for the author's code around a model, and an alarm."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from resource import RUSAGE_THREAD, getrusage
from typing import Any, NamedTuple

from relight.base.errors import NotReady, Overloaded

RETRY_AFTER = 1.0
"""Seconds that a refused caller is told to wait; a queue that is full now is rarely so a second later."""


class _Job(NamedTuple):
    future: Future[Any]
    work: Callable[[], Any]


class Workers:
    """Threads that run what is submitted, oldest first; ``limit`` may wait, more are refused.

    Threads start as work comes and are daemons: a process that has drained ends even if an author's code hangs. A
    future that was cancelled while it waited is never run.
    """

    def __init__(self, name: str, threads: int, limit: int) -> None:
        self.name = name
        self._size = threads
        self._limit = limit
        self._jobs: deque[_Job] = deque()
        self._idle = 0
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._changed = threading.Condition()

    @property
    def queued(self) -> int:
        """How many wait."""
        return len(self._jobs)

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Queue some work. Overloaded when ``limit`` are waiting, NotReady after ``stop``."""
        job = _Job(Future(), work)
        with self._changed:
            if self._closed:
                raise NotReady("this process is stopping", retry_after=RETRY_AFTER)
            if len(self._jobs) >= self._limit:
                self._jobs = deque(job for job in self._jobs if not job.future.cancelled())
            if len(self._jobs) >= self._limit:
                raise Overloaded(f"{self._limit} requests are waiting already", retry_after=RETRY_AFTER)
            self._jobs.append(job)
            if self._idle < len(self._jobs) and len(self._threads) < self._size:
                name = f"{self.name}-{len(self._threads)}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify()
        return job.future

    def stop(self, timeout: float) -> None:
        """Take nothing more, refuse what waits, and give what runs ``timeout`` seconds. Idempotent."""
        with self._changed:
            self._closed = True
            waiting, self._jobs = self._jobs, deque()
            self._changed.notify_all()
        for job in waiting:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(NotReady("this process is stopping", retry_after=RETRY_AFTER))
        for thread in self._threads:
            thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._jobs and not self._closed:
                    self._changed.wait()
                self._idle -= 1
                if not self._jobs:
                    return
                job = self._jobs.popleft()
            _execute(*job)
            # Nothing of this request may live until the next one comes.
            del job


def _execute(future: Future[Any], work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:  # An author's sys.exit must end the request, not this thread.
        future.set_exception(error)
    else:
        future.set_result(result)


class Stopwatch:
    """Times work on this thread, and knows whether it was slow or was interrupted."""

    __slots__ = ("_begun", "_usage")

    def __init__(self) -> None:
        self._usage = getrusage(RUSAGE_THREAD)
        self._begun = time.perf_counter()

    def seconds(self, suspicious: float) -> float:
        """Seconds since it was made.

        Above ``suspicious``: the time that the thread spent on a CPU, if it never gave that up of itself. Then other
        processes have had it, and the work was not to blame.
        """
        seconds = time.perf_counter() - self._begun
        if seconds <= suspicious:
            return seconds
        before, after = self._usage, getrusage(RUSAGE_THREAD)
        if after.ru_nvcsw != before.ru_nvcsw:
            return seconds
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


class Alarm:
    """Calls ``ring`` in a thread of its own at the earliest of the times that were set. Nothing runs between them.

    Times are those of ``time.perf_counter``. The thread starts when the first time is set.
    """

    def __init__(self, name: str, ring: Callable[[], None]) -> None:
        self._name = name
        self._ring = ring
        self._at: float | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._changed = threading.Condition()

    def set(self, at: float) -> None:
        """Ring at ``at``, unless it rings earlier: whoever still wants this time then sets it again."""
        with self._changed:
            if self._closed or (self._at is not None and self._at <= at):
                return
            self._at = at
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify()

    def stop(self) -> None:
        """Ring no more. Idempotent; does not wait for a ``ring`` that is going on."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (self._at is None or self._at > time.perf_counter()):
                    self._changed.wait(None if self._at is None else max(0.0, self._at - time.perf_counter()))
                if self._closed:
                    return
                self._at = None
            self._ring()
