"""Who waits in front of a model, and in which order answers are told."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate

from relight.decide import batching
from relight.decide.batching import BatchingSettings
from relight.runtime.tickets import Seat, Ticket, measured

GAP_SHARE = 0.2
"""Weight of the newest gap between two arrivals in the average."""


class Line:
    """Seats in the order of their arrival, a bounded number of requests. Hold the batcher's lock.

    Without ``batches`` each request rides alone.
    """

    def __init__(self, settings: BatchingSettings, limit: int, *, batches: bool) -> None:
        self._settings = settings
        self._limit = limit
        self._batches = batches
        self.seats: list[Seat] = []
        self.gap: float | None = None
        """Seconds that usually lie between two arrivals; None: not known."""
        self._arrived: float | None = None
        self._someone_left = False

    @property
    def requests(self) -> int:
        """How many requests wait; of one that is split, the first part counts."""
        return _requests(self.seats)

    @property
    def rows(self) -> int:
        return sum(seat.rows for seat in self.seats)

    def seats_of(self, ticket: Ticket, expires: float | None) -> list[Seat]:
        """The seats that a request takes: one, or several where it has more rows than a run may. Needs no lock."""
        job, level, arrived = ticket.job, ticket.level, ticket.arrived
        rows, group, weight = measured(job, self._settings)
        if group is None or not self._batches:
            return [Seat(rows, None, arrived, expires, level, weight, ticket=ticket)]
        if rows <= self._settings.max_batch_size:
            return [Seat(rows, group, arrived, expires, level, weight, ticket=ticket)]
        sizes = batching.parts(rows, self._settings.max_batch_size)
        ticket.parts = [None] * len(sizes)
        starts = accumulate(sizes, initial=0)
        return [
            Seat(size, group, arrived, expires, level, weight, ticket=ticket, part=part, start=start)
            for part, (size, start) in enumerate(zip(sizes, starts, strict=False))
        ]

    def full(self, level: int) -> int | None:
        """The bound that keeps a request of this level out; None where it may join."""
        bound = self._settings.policy(level).max_queue_size
        if len(self.seats) >= (min(bound, self._limit) if bound else self._limit):
            self.drop_left()
            if _requests(self.seats) >= self._limit:
                return self._limit
            if bound and _requests(seat for seat in self.seats if seat.level == level) >= bound:
                return bound
        return None

    def join(self, seats: Sequence[Seat], now: float) -> None:
        if self._arrived is not None:
            gap = now - self._arrived
            self.gap = gap if self.gap is None else self.gap + GAP_SHARE * (gap - self.gap)
        self._arrived = now
        self.seats.extend(seats)

    def take(self, leaving: Iterable[Sequence[Seat]]) -> None:
        """Those leave the line."""
        gone = {id(seat) for seats in leaving for seat in seats}
        if gone:
            self.seats = [seat for seat in self.seats if id(seat) not in gone]

    def note_leave(self) -> None:
        """A ticket is gone; its seats are dropped at the next look. Needs no lock."""
        self._someone_left = True

    def drop_left(self) -> None:
        """Forget the seats of tickets that are gone."""
        if self._someone_left:
            self._someone_left = False
            self.seats = [seat for seat in self.seats if not seat.ticket.gone]

    def clear(self) -> list[Seat]:
        """All seats leave."""
        seats, self.seats = self.seats, []
        return seats


class Order:
    """Answers leave in the order of their requests. ``join`` and ``clear`` under ``lock``, ``tell`` not."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._tickets: deque[Ticket] = deque()
        # They are told one by one; a callback may come back here.
        self._telling = threading.RLock()

    def join(self, ticket: Ticket) -> None:
        self._tickets.append(ticket)

    def clear(self) -> None:
        self._tickets.clear()

    def tell(self) -> None:
        """Settle those at the front that are over."""
        with self._telling:
            while True:
                with self._lock:
                    if not self._tickets or not self._tickets[0].over:
                        return
                    first = self._tickets.popleft()
                first.settle()


def _requests(seats: Iterable[Seat]) -> int:
    return sum(1 for seat in seats if seat.part == 0 and not seat.ticket.gone)
