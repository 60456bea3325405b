"""The queue in front of a model: requests in, futures out, runs of many requests at once.

The interface is what every host builds on: ``submit`` returns at once, a future that is cancelled while it waits is
never computed, and a full queue is an answer and not a wait. What rides together is decided in ``decide.batching``;
here are the threads, the clock and the futures.

Requests of one turn of an event loop are decided on together. Runs that are known to be short are made on that loop's
thread; each other run is handed to a thread once, however many requests it holds.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from relight.base.errors import BadInput, Deadline, NotReady, Overloaded, RelightError
from relight.decide import batching
from relight.decide.batching import BatchingSettings
from relight.decide.costs import OVERHEAD, Costs
from relight.decide.inlining import ENTER, Inlining
from relight.runtime.line import Line, Order
from relight.runtime.rows import merged, shares_of
from relight.runtime.tickets import TIMING, Computed, Job, Seat, Ticket, asked_level, asked_timeout
from relight.runtime.timeouts import Timeouts
from relight.runtime.workers import RETRY_AFTER, Alarm, Stopwatch
from relight.wire.tensors import ANY, Array

if TYPE_CHECKING:
    from relight.runtime.model import Model

__all__ = ["Batcher", "Computed", "Job", "for_model"]

log = logging.getLogger("relight.batcher")

Compute = Callable[[dict[str, Array]], Mapping[str, Array]]
Observe = Callable[[int, float, float], None]
"""Hears of one run: its rows, the seconds that the first of them waited, and those that it took."""

ALONE = BatchingSettings(max_batch_size=1)
"""Every request is a run of its own."""
TURN = 0.002
"""Seconds of runs on an event loop in one of its turns; then others have theirs."""
LONGEST_RETRY = 60.0
"""Seconds that a refused caller is told to wait at most."""


class _Work(NamedTuple):
    """Passengers of one run, all on board."""

    seats: list[Seat]
    failed_on_loop: bool = False


class _Instance:
    """One copy of the model: computes one run at a time."""

    def __init__(self, name: str, compute: Compute) -> None:
        self.name = name
        self.compute = compute
        self.work: SimpleQueue[_Work | None] = SimpleQueue()
        self.thread: threading.Thread | None = None
        self.made = 0
        """Runs in the thread."""


class Batcher:
    """Batches for the instances of one model. ``limit`` requests may wait.

    Without ``settings`` each request is a run of its own. Without ``on_loop`` all runs are made in the instances' own
    threads. ``observe`` hears of each run, in the thread that made it.
    """

    def __init__(
        self,
        name: str,
        instances: Sequence[Compute],
        limit: int,
        settings: BatchingSettings | None = None,
        *,
        on_loop: bool = True,
        observe: Observe | None = None,
    ) -> None:
        self._settings = settings or ALONE
        self._line = Line(self._settings, limit, batches=settings is not None)
        self._instances = [_Instance(f"{name}-model-{n}", compute) for n, compute in enumerate(instances)]
        self._observe = observe
        self._inlining = Inlining() if on_loop else None
        self._costs: dict[int, Costs] = {}
        self._lock = threading.Lock()
        self._idle = list(reversed(self._instances))
        self._turning: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._timeouts = Timeouts()
        self._order = Order(self._lock) if self._settings.preserve_ordering else None
        self._alarm = Alarm(f"{name}-alarm", self._rung)

    @property
    def queued(self) -> int:
        """How many requests wait."""
        return self._line.requests

    def submit(self, job: Job) -> Ticket:
        """Queue a job.

        Overloaded, with the seconds to wait, when the queue is full; NotReady after ``stop``; BadInput for a timeout or
        a priority that is none.
        """
        settings = self._settings
        asked, level = 0.0, settings.default_priority_level
        if job.parameters and not TIMING.isdisjoint(job.parameters):
            asked, level = asked_timeout(job.parameters), settings.level(asked_level(job.parameters))
        patience = settings.patience(level, asked)
        now = time.perf_counter()
        ticket = Ticket(job, now, level, self._line.note_leave)
        seats = self._line.seats_of(ticket, now + patience if patience else None)
        with self._lock:
            if self._closed:
                raise NotReady("this process is stopping", retry_after=RETRY_AFTER)
            if (bound := self._line.full(level)) is not None:
                raise self._refusal(seats[0], bound)
            self._line.join(seats, now)
            if self._order is not None:
                self._order.join(ticket)
            if asked and settings.own_deadline(level):
                self._timeouts.add(now + patience, ticket)
                self._alarm.set(now + patience)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # A thread without a loop: nothing else comes in its turn.
            self._step()
        else:
            if self._turning is not loop:
                self._turning = loop
                loop.call_soon(self._turn, loop)
        return ticket

    def stop(self, timeout: float) -> None:
        """Refuse what waits and give the running jobs ``timeout`` seconds. Idempotent."""
        with self._lock:
            self._closed = True
            waiting = self._line.clear()
            if self._order is not None:
                self._order.clear()
        for ticket in {seat.ticket for seat in waiting}:
            if ticket.board(ticket.arrived):
                self._refuse(ticket, NotReady("this process is stopping", retry_after=RETRY_AFTER))
        self._alarm.stop()
        until = time.perf_counter() + timeout
        for instance in self._instances:
            instance.work.put(None)
        for instance in self._instances:
            if instance.thread is not None:
                instance.thread.join(max(0.0, until - time.perf_counter()))

    def _refusal(self, seat: Seat, waiting: int) -> Overloaded:
        """Why a request is not taken, and when it may be: by what the rows that wait should take."""
        costs = self._costs.get(seat.weight)
        each = costs.at_most(1) if costs is not None else None
        seconds = RETRY_AFTER if each is None else each * self._line.rows / len(self._instances)
        seconds = min(max(seconds, RETRY_AFTER), LONGEST_RETRY)
        return Overloaded(f"{waiting} requests are waiting already", retry_after=seconds)

    # Deciding.

    def _step(self, *, on_loop: bool = False) -> list[tuple[_Instance, _Work]]:
        """Decide, hand runs to threads, and return those that this thread, a loop's, is to make itself."""
        line = self._line
        with self._lock:
            line.drop_left()
            if not line.seats:
                return []
            now = time.perf_counter()
            decision = batching.decide(line.seats, len(self._idle), self._settings, self._costs, line.gap, now)
            line.take((*decision.batches, decision.expired))
            here = [run for batch in decision.batches if (run := self._assign(batch, now, on_loop)) is not None]
            if decision.look_again is not None:
                self._alarm.set(decision.look_again)
        for seat in decision.expired:
            self._refuse(seat.ticket, _late(seat.ticket, now))
        return here

    def _assign(self, batch: Sequence[Seat], now: float, on_loop: bool) -> tuple[_Instance, _Work] | None:
        work = _Work([seat for seat in batch if seat.ticket.board(now)])
        if not work.seats:
            return None
        instance = self._idle.pop()
        if on_loop and self._inlining is not None:
            costs = self._costs.get(max(seat.weight for seat in work.seats))
            expected = costs.at_most(sum(seat.rows for seat in work.seats)) if costs is not None else None
            if self._inlining.allows(expected):
                return instance, work
        self._hand_over(instance, work)
        return None

    def _hand_over(self, instance: _Instance, work: _Work) -> None:
        if instance.thread is None:
            instance.thread = threading.Thread(target=self._work, args=(instance,), name=instance.name, daemon=True)
            instance.thread.start()
        instance.work.put(work)

    def _release(self, instance: _Instance) -> None:
        with self._lock:
            self._idle.append(instance)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """All that came in one turn of a loop."""
        self._turning = None
        until: float | None = None
        while runs := self._step(on_loop=True):
            for instance, work in runs:
                now = time.perf_counter()
                until = until or now + TURN
                if self._on_loop(instance, work):
                    self._release(instance)
            if time.perf_counter() > (until or 0.0):
                self._turning = loop
                loop.call_soon(self._turn, loop)
                return

    def _rung(self) -> None:
        """In the alarm's thread: a deadline is here, or a wait for company over."""
        now = time.perf_counter()
        with self._lock:
            late = self._timeouts.due(now)
            earliest = self._timeouts.earliest
        if earliest is not None:
            self._alarm.set(earliest)
        for ticket in late:
            self._refuse(ticket, _late(ticket, now))
        self._step()

    def _refuse(self, ticket: Ticket, error: BaseException) -> None:
        """Answer with an error now, whatever else is under way for it."""
        ticket.refuse(error)
        self._line.note_leave()

    # Computing.

    def _work(self, instance: _Instance) -> None:
        while (work := instance.work.get()) is not None:
            culprits = self._compute(instance, work.seats)
            if work.failed_on_loop and not culprits and self._inlining is not None:
                log.warning("model.not_on_loop: it fails on the event loop's thread only; it stays in its own")
                self._inlining = None
            # Nothing of these requests may live until the next ones come.
            del work
            self._release(instance)
            self._step()

    def _on_loop(self, instance: _Instance, work: _Work) -> bool:
        """A run on the loop's thread; False where it failed, and is repeated in the instance's thread."""
        inlining = self._inlining
        begun = time.perf_counter()
        watch = Stopwatch()
        try:
            shares = shares_of(instance.compute(self._merged(work.seats)), work.seats)
        except BaseException as error:
            if self._closed or (len(work.seats) == 1 and isinstance(error, RelightError)):
                for seat in work.seats:
                    self._fail(seat, error)
                return True
            self._hand_over(instance, _Work(work.seats, failed_on_loop=True))
            return False
        seconds = watch.seconds(ENTER)
        if inlining is not None:
            inlining.on_loop(seconds)
        self._done(work.seats, shares, begun, seconds)
        return True

    def _compute(self, instance: _Instance, seats: list[Seat]) -> int:
        """Compute seats together; where that fails, by halves, until each one that fails is alone. How many failed."""
        seats = [seat for seat in seats if not seat.ticket.gone]
        if not seats:
            return 0
        instance.made += 1
        made, begun = instance.made, time.perf_counter()
        try:
            shares = shares_of(instance.compute(self._merged(seats)), seats)
        except BaseException as error:  # An author's sys.exit must end the request, not this thread.
            if len(seats) == 1:
                self._fail(seats[0], error)
                return 1
            log.info("batch.failed requests=%d error=%s: it is repeated by halves", len(seats), type(error).__name__)
            middle = len(seats) // 2
            culprits = self._compute(instance, seats[:middle]) + self._compute(instance, seats[middle:])
            if not culprits:
                # Nobody's fault: so large a run does not work, and costs what all these runs did.
                self._learn(seats, time.perf_counter() - begun + OVERHEAD * (instance.made - made))
            return culprits
        seconds = time.perf_counter() - begun
        if self._inlining is not None:
            self._inlining.in_thread(seconds)
        self._done(seats, shares, begun, seconds)
        return 0

    def _merged(self, seats: list[Seat]) -> dict[str, Array]:
        return merged([seat.inputs() for seat in seats], self._settings.ragged)

    def _learn(self, seats: list[Seat], seconds: float) -> None:
        weight = max(seat.weight for seat in seats)
        with self._lock:
            costs = self._costs.get(weight)
            if costs is None:
                costs = self._costs[weight] = Costs()
            costs.learn(sum(seat.rows for seat in seats), seconds)

    def _done(self, seats: list[Seat], shares: list[dict[str, Array]], begun: float, seconds: float) -> None:
        self._learn(seats, seconds)
        if self._observe is not None:
            rows = sum(seat.rows for seat in seats)
            self._observe(rows, begun - min(seat.arrived for seat in seats), seconds)
        for seat, share in zip(seats, shares, strict=True):
            ticket = seat.ticket
            if len(ticket.parts) == 1:
                ticket.arrive(0, share, seconds)
            else:
                with self._lock:  # Other parts may be done at the same time, by other instances.
                    if not ticket.arrive(seat.part, share, seconds):
                        continue
            self._tell(ticket)

    def _fail(self, seat: Seat, error: BaseException) -> None:
        seat.ticket.outcome = error
        if len(seat.ticket.parts) > 1:
            seat.ticket.gone = True
            self._line.note_leave()
        self._tell(seat.ticket)

    def _tell(self, ticket: Ticket) -> None:
        if self._order is None:
            ticket.settle()
        else:
            self._order.tell()


def for_model(model: Model, limit: int, observe: Observe | None = None, compute: Compute | None = None) -> Batcher:
    """The batcher that a model asks for. ``compute``: the model's own with something around it."""
    settings = model.batching
    if settings is not None and settings.ragged:
        wide = [spec.name for spec in model.outputs if ANY in spec.shape[1:]]
        if wide:
            raise BadInput(
                f"the outputs {', '.join(map(repr, wide))} have a variable dimension after the first: their rows could"
                " not be told from padding, so no input may be declared ragged"
            )
    copies = [compute or model.compute] * model.instances
    return Batcher(model.context.name, copies, limit, settings, on_loop=model.on_loop, observe=observe)


def _late(ticket: Ticket, now: float) -> Deadline:
    where = "in the queue" if ticket.begun is None else "and is not computed yet"
    return Deadline(f"the request has spent {(now - ticket.arrived) * 1000:.0f} ms {where}, its time is over")
