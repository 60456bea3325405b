"""At most one run per event: the answer to an event is kept for a while, and given again to whoever sends it again.

An event is known by its source and id; one that comes again under the same names with another type or other data is
no duplicate but a sender's mistake, and is run. While the first run goes on, a duplicate waits for it and gets the same
answer, also where the first caller has hung up meanwhile: a broker that lost patience joins the run that it started. An
answer that is a failure is not kept: the next attempt runs anew.

In memory, bounded by time, by number and by bytes, the oldest going first: what is forgotten is run again. Replies keep
their id over such a second run (``answers.events``), so that the next function in the chain still knows them. Several
replicas do not know of each other's answers.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from relight.base.errors import NotReady
from relight.wire.cloudevents import Event
from relight.wire.http import Response

Key = tuple[str, str, str]
"""An event's source and id, and the digest of its type and data."""

ANSWERS = 10_000
ANSWER_BYTES = 32 * 2**20


@dataclass(slots=True)
class _Run:
    """One event at work: the future of the work, and one for each caller that waits for it."""

    work: Future[Response]
    callers: list[Future[Response]] = field(default_factory=list)


def key_of(event: Event) -> Key:
    return event.source, event.id, event.digest()


class Dedup:
    """See the module. ``ttl`` in seconds."""

    def __init__(
        self,
        ttl: float,
        *,
        answers: int = ANSWERS,
        answer_bytes: int = ANSWER_BYTES,
        now: Callable[[], float] = time.monotonic,
        on_replay: Callable[[], None] = lambda: None,
    ) -> None:
        self._ttl = ttl
        self._limit = answers
        self._limit_bytes = answer_bytes
        self._now = now
        self._on_replay = on_replay
        self._lock = threading.RLock()  # a run that is cancelled ends within the lock
        self._running: dict[Key, _Run] = {}
        self._answers: OrderedDict[Key, tuple[float, Response]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._answers)

    def submit(self, key: Key, start: Callable[[], Future[Response]]) -> Future[Response]:
        """The answer to an event: a kept one, that of the run that goes on, or that of a new run (``start``).

        Each caller has a future of its own: cancelling it ends the run only if that has not begun and nobody else
        waits for it.
        """
        caller: Future[Response] = Future()
        with self._lock:
            self._forget()
            kept = self._answers.get(key)
            if kept is not None:
                self._on_replay()
                caller.set_result(kept[1])
                return caller
            known = self._running.get(key)
            if known is not None:
                self._on_replay()
            run = known or _Run(start())
            run.callers.append(caller)
            self._running[key] = run
        caller.add_done_callback(lambda _: self._left(run))
        if known is None:
            run.work.add_done_callback(lambda work: self._ended(key, run, work))
        return caller

    def _left(self, run: _Run) -> None:
        """A caller has its answer, or hung up: what nobody waits for and has not begun is not run."""
        with self._lock:
            if not run.work.done() and all(caller.cancelled() for caller in run.callers):
                run.work.cancel()

    def _ended(self, key: Key, run: _Run, work: Future[Response]) -> None:
        error = NotReady("the run was cancelled", retry_after=1.0) if work.cancelled() else work.exception()
        with self._lock:
            if self._running.get(key) is run:
                del self._running[key]
            if error is None and work.result().status < 300:
                self._keep(key, work.result())
        for caller in run.callers:
            if not caller.set_running_or_notify_cancel():
                continue
            if error is not None:
                caller.set_exception(error)
            else:
                caller.set_result(work.result())

    def _keep(self, key: Key, answer: Response) -> None:
        size = _size(answer)
        if size > self._limit_bytes:
            return
        self._answers[key] = (self._now() + self._ttl, answer)
        self._bytes += size
        while len(self._answers) > self._limit or self._bytes > self._limit_bytes:
            self._drop_oldest()

    def _forget(self) -> None:
        """What is over its time leaves; the oldest stand first, and all are kept equally long."""
        now = self._now()
        while self._answers and next(iter(self._answers.values()))[0] <= now:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, (_, answer) = self._answers.popitem(last=False)
        self._bytes -= _size(answer)


def _size(answer: Response) -> int:
    return len(answer.body) + 512
