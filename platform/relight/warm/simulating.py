"""Replaying a trace under plans, exactly, many millions of entries a minute.

One replica per function is enough. A call that finds none that is ready waits: for a whole cold start, or for the rest
of one that is under way. A replica is up from the start of its cold start, or of its pre-warm, until the plan lets it
go; what it is up and does not compute is idle time, loading included.

Whether a call is cold depends on when the work before it ended, and that on whether *that* was cold: a chain through
the whole trace. But few links matter. All entries are first judged as if nothing before had been cold, and again with
what this made of the ends before them, until nothing changes; almost all is settled after two or three rounds. The
functions that are not (many calls, and hardly any keeping) are walked through call by call.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from relight.decide.idletimes import Bools, Floats, Ints
from relight.decide.keepalive import Prices
from relight.warm.traces import MINUTE, Trace

ROUNDS = 6
"""After which what is not settled is walked through."""
PRECISION = 4
"""Decimal places of a second."""
FEWEST_CALLS = 10
"""Calls that a function needs for its share of cold starts to count in the percentiles."""


_INF = float("inf")


class Entries:
    """A trace as the simulator wants it: seconds, and what is before what."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.function = trace.function
        self.calls = trace.calls
        self.space: Floats = MINUTE / trace.calls
        self.begin: Floats = trace.minute * MINUTE
        self.end: Floats = self.begin + (trace.calls - 1) * self.space
        """Arrival of the last call."""
        self.first: Bools = _starts(trace.function)
        self.run: Floats = trace.run[trace.function]
        self.cold: Floats = trace.cold[trace.function]

    def __len__(self) -> int:
        return len(self.function)

    @cached_property
    def idle(self) -> Floats:
        """Idle seconds before each entry if nothing was cold; negative where work overlaps, NaN for a first one."""
        found: Floats = np.where(self.first, np.nan, self.begin - _before(self.end, 0.0) - self.run)
        return found

    @cached_property
    def inner(self) -> Floats:
        """Idle seconds between two calls of an entry; 0 where there is one call, or work overlaps."""
        found: Floats = np.where(self.calls > 1, np.maximum(self.space - self.run, 0.0), 0.0)
        return found


@dataclass(frozen=True)
class Plan:
    """What follows each entry of a trace: arrays of its length, or numbers for all."""

    keep: Floats | float
    ready: Floats | float = np.inf
    until: Floats | float = np.inf


@dataclass(frozen=True)
class Outcome:
    """Per function, of the scored part."""

    calls: Floats
    cold: Floats
    """Calls that found no ready replica."""
    waiting: Floats
    """Seconds, of all calls."""
    idle: Floats
    """Seconds that a replica was up and did not compute."""
    share: Floats

    def money(self, prices: Prices) -> float:
        return float((self.idle * self.share).sum() * prices.idle + self.waiting.sum() * prices.waiting)

    @property
    def gpu_seconds(self) -> float:
        """Idle GPU-seconds: a replica that has a fourth of a GPU idles a fourth of a GPU-second per second."""
        return float((self.idle * self.share).sum())

    def percentile(self, percent: float) -> float:
        """Of the share of cold calls, over functions with ``FEWEST_CALLS`` calls or more."""
        enough = self.calls >= FEWEST_CALLS
        shares = self.cold[enough] / self.calls[enough]
        return float(np.percentile(shares, percent)) if len(shares) else 0.0

    @property
    def cold_share(self) -> float:
        """Of all calls."""
        return float(self.cold.sum() / max(1.0, self.calls.sum()))


def simulate(entries: Entries, plan: Plan) -> Outcome:
    """What a trace costs under a plan."""
    return _Run(entries, plan).outcome()


def oracle(entries: Entries) -> Outcome:
    """Who knows the future keeps a replica where that is shorter than a start, else starts one just in time."""
    trace, scored = entries.trace, entries.begin >= entries.trace.scored_from * MINUTE
    gap = np.where(entries.first, entries.cold, np.maximum(np.nan_to_num(entries.idle), 0.0))
    idle = np.minimum(gap, entries.cold) + (entries.calls - 1) * np.minimum(entries.inner, entries.cold)
    zeros = np.zeros(trace.size)
    calls = _sum(trace, entries.function, np.where(scored, entries.calls, 0))
    return Outcome(calls, zeros, zeros, _sum(trace, entries.function, np.where(scored, idle, 0.0)), trace.share)


class _Run:
    """One simulation. Works on *lines*: entries, with those taken apart whose calls may be cold one by one."""

    def __init__(self, entries: Entries, plan: Plan) -> None:
        trace = entries.trace
        keep, ready, until = (np.broadcast_to(part, len(entries)) for part in (plan.keep, plan.ready, plan.until))
        apart = (entries.inner > np.where(np.isfinite(ready), 0.0, keep)) & (entries.calls > 1)
        self.trace = trace
        number = np.where(apart, entries.calls, 1)
        at = np.repeat(np.arange(len(entries)), number)
        place = np.arange(len(at)) - np.repeat(np.cumsum(number) - number, number)
        self.function = entries.function[at]
        self.space = entries.space[at]
        self.calls = np.where(apart[at], 1, entries.calls[at])
        self.begin = entries.begin[at] + place * self.space
        self.end = self.begin + (self.calls - 1) * self.space
        self.first = _starts(self.function)
        self.run, self.cold = entries.run[at], entries.cold[at]
        self.plan = Plan(keep[at], ready[at], until[at])
        # What is in force before a line is what followed the one before it.
        self.keep, self.ready, self.until = (_before(part[at], np.inf) for part in (keep, ready, until))
        self.before = np.where(self.first, -np.inf, _before(self.end, 0.0))
        self.free = np.empty(len(at))
        """When the work before a line ends."""
        self.started = np.empty(len(at))
        """When the replica that a line's first call starts or waits for is ready; -inf where one was."""
        self.last_ready = np.empty(len(at))
        """The same of this line or the last one before it that had to wait."""
        self._settle()

    def _settle(self) -> None:
        lines = np.arange(len(self.function))
        came = np.full(len(lines), -np.inf)
        for _ in range(ROUNDS):
            self._judge(lines, came)
            last = self._running(lines)
            self.last_ready[lines] = last
            now = np.where(self.first[lines], -np.inf, _before(last, -np.inf))
            changed = now != came
            if not changed.any():
                return
            stirred = np.zeros(self.trace.size, bool)
            stirred[self.function[lines[changed]]] = True
            kept = stirred[self.function[lines]]
            lines, came = lines[kept], now[kept]
        self._walk(lines)

    def _running(self, lines: Ints) -> Floats:
        """The latest ``started`` so far of each function. An offset that grows with them keeps functions apart."""
        apart = 2.0 * (self.trace.minutes * MINUTE + float(self.trace.cold.max(initial=0.0)))
        base = self.function[lines] * apart
        top = np.maximum.accumulate(base + np.maximum(self.started[lines], 0.0)) - base
        # The offset costs some bits, so that microseconds are rounded off.
        found: Floats = np.where(top <= 0.0, -np.inf, np.round(top, PRECISION))
        return found

    def _judge(self, lines: Ints, came: Floats) -> None:
        free = np.where(self.first[lines], -np.inf, np.maximum(self.before[lines], came) + self.run[lines])
        self.free[lines] = free
        parts = (part[lines] for part in (self.keep, self.ready, self.until, self.cold))
        started = np.where(
            self.first[lines], self.begin[lines] + self.cold[lines], _started(self.begin[lines], free, *parts)
        )
        self.started[lines] = np.round(started, PRECISION)

    def _walk(self, lines: Ints) -> None:
        """One by one: as plain numbers, which for chains is quicker than arrays."""
        names = ("begin", "before", "run", "keep", "ready", "until", "cold", "first")
        columns = (getattr(self, name)[lines].tolist() for name in names)
        free, started, last_ready = [], [], []
        came = -_INF
        for begin, before, run, keep, ready, until, cold, first in zip(*columns, strict=True):
            if first:
                came = -_INF
            end = (before if before > came else came) + run
            gap = begin - end
            when = -_INF
            if first or (gap > keep and not ready <= gap <= until):
                on_its_way = not first and gap < ready and gap >= ready - cold and gap >= keep
                when = came = end + ready if on_its_way else begin + cold
            free.append(end)
            started.append(when)
            last_ready.append(came)
        self.free[lines], self.started[lines], self.last_ready[lines] = free, started, last_ready

    def outcome(self) -> Outcome:
        trace, scored_from = self.trace, self.trace.scored_from * MINUTE
        scored = self.begin >= scored_from
        waited = np.where(self.last_ready > self.begin, self.last_ready - self.begin, 0.0)
        late = np.clip(np.ceil(waited / self.space), 0, self.calls)
        waiting = late * waited - self.space * late * (late - 1) / 2
        idle = np.where(scored, self._between() + np.maximum(self.started - self.begin, 0.0) + self._inside(late), 0.0)
        idle += self._after()
        return Outcome(
            _sum(trace, self.function, self.calls * scored),
            _sum(trace, self.function, late * scored),
            _sum(trace, self.function, np.where(scored, waiting, 0.0)),
            _sum(trace, self.function, idle),
            trace.share,
        )

    def _between(self) -> Floats:
        """Idle seconds between the work before and a line, those before the scored part left out."""
        gap = np.where(self.first, 0.0, np.maximum(self.begin - self.free, 0.0))
        early = np.clip(np.where(self.first, 0.0, self.trace.scored_from * MINUTE - self.free), 0.0, gap)
        parts = (self.keep, self.ready, self.until, self.cold)
        found: Floats = _up(gap, *parts) - _up(early, *parts)
        return found

    def _inside(self, late: Floats) -> Floats:
        """Idle seconds between the calls of a line."""
        apart = np.maximum(self.space - self.run, 0.0)
        rest = self.calls - late
        next_one = self.begin + late * self.space
        after_wait = np.maximum(next_one - self.last_ready - self.run, 0.0)
        waited = np.where(rest > 0, after_wait + np.maximum(rest - 1, 0) * apart, 0.0)
        found: Floats = np.where(late > 0, waited, (self.calls - 1) * apart)
        return found

    def _after(self) -> Floats:
        """Idle seconds after the last line of each function, until the trace ends."""
        last = np.append(self.first[1:], True) if len(self.first) else self.first
        free = np.maximum(self.end, self.last_ready) + self.run
        gap = np.maximum(self.trace.minutes * MINUTE - free, 0.0)
        early = np.clip(self.trace.scored_from * MINUTE - free, 0.0, gap)
        keep, ready, until = (
            np.broadcast_to(part, len(free)) for part in (self.plan.keep, self.plan.ready, self.plan.until)
        )
        parts = (keep, ready, until, self.cold)
        found: Floats = np.where(last, _up(gap, *parts) - _up(early, *parts), 0.0)
        return found


def _started(begin: Floats, free: Floats, keep: Floats, ready: Floats, until: Floats, cold: Floats) -> Floats:
    """When the replica is ready that a call at ``begin`` waits for; -inf where one is ready."""
    gap = begin - free
    warm = (gap <= keep) | ((gap >= ready) & (gap <= until))
    on_its_way = (gap >= np.maximum(ready - cold, keep)) & (gap < ready)
    with np.errstate(invalid="ignore"):  # infinities where neither is true
        found: Floats = np.where(warm, -np.inf, begin + np.where(on_its_way, ready - gap, cold))
    return found


def _up(gap: Floats, keep: Floats, ready: Floats, until: Floats, cold: Floats) -> Floats:
    """Seconds of an idle time of length ``gap`` that a replica is up."""
    start = np.maximum(ready - cold, keep)
    found: Floats = np.minimum(gap, keep) + np.maximum(np.minimum(gap, until) - start, 0.0)
    return found


def _starts(function: Ints) -> Bools:
    return np.append(True, function[1:] != function[:-1]) if len(function) else np.zeros(0, bool)


def _before(values: Floats, first: float) -> Floats:
    """What stands one place earlier."""
    return np.append(first, values[:-1])


def _sum(trace: Trace, function: Ints, values: Floats) -> Floats:
    found: Floats = np.bincount(function, values, trace.size).astype(np.float64)
    return found
