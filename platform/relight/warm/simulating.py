"""Replaying a trace under plans, exactly, millions of entries a second.

One replica per function is enough. A call that finds none that is ready waits: for a whole cold start, or for the rest
of one that is under way. A replica is up from the start of its cold start, or of its pre-warm, until the plan lets it
go; what it is up and does not compute is idle time, loading included.

Calls are not taken one by one. Those of an entry come at even intervals: where a replica outlasts the interval, only
the first of them can start one, and where none does, cold starts come at even intervals too (``lines``). What is left
is that a start that outlasts its entry changes what follows. All entries are first judged as if none did, then again
those that one reaches, and those that these reach, until nothing changes: mostly two or three rounds of few entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from relight.decide.idletimes import Bools, Floats
from relight.decide.keepalive import Prices
from relight.warm.lines import BLOCK, Lines, Plan, starts
from relight.warm.traces import MINUTE, Trace

FEWEST_CALLS = 10
"""Calls that a function needs for its share of cold starts to count in the percentiles."""


class Entries:
    """A trace as the simulator wants it: seconds, and what is before what."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.function = trace.function
        self.calls: Floats = trace.calls.astype(np.float64)
        self.space: Floats = MINUTE / trace.calls
        self.begin: Floats = trace.minute * MINUTE
        self.end: Floats = self.begin + (trace.calls - 1) * self.space
        """Arrival of the last call."""
        self.first: Bools = starts(trace.function)
        self.run: Floats = trace.run[trace.function]
        self.cold: Floats = trace.cold[trace.function]

    def __len__(self) -> int:
        return len(self.function)

    @cached_property
    def idle(self) -> Floats:
        """Idle seconds before each entry if nothing was cold; negative where work overlaps, NaN for a first one."""
        found: Floats = np.empty(len(self))
        np.subtract(self.begin[1:], self.end[:-1], out=found[1:])
        found -= self.run
        found[self.first] = np.nan
        return found

    @cached_property
    def inner(self) -> Floats:
        """Idle seconds between two calls of an entry; 0 where there is one call, or work overlaps."""
        found: Floats = np.where(self.calls > 1, np.maximum(self.space - self.run, 0.0), 0.0)
        return found


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
    trace = entries.trace
    lines = Lines.of(entries, plan)
    came, out = lines.settled()
    scored_from = trace.scored_from * MINUTE
    scored = np.flatnonzero(lines.begin >= scored_from)
    bill = np.empty((3, len(scored)))
    for begin in range(0, len(scored), BLOCK):
        at = scored[begin : begin + BLOCK]
        one = lines.bill(at, came[at], scored_from)
        bill[:, begin : begin + BLOCK] = one.cold, one.waiting, one.idle
    function = lines.function[scored]
    last = np.flatnonzero(np.append(lines.first[1:], True)) if len(lines.first) else np.zeros(0, np.int64)
    after = lines.after(last, out[last], scored_from, trace.minutes * MINUTE)
    return Outcome(
        _sum(trace, function, lines.calls[scored]),
        _sum(trace, function, bill[0]),
        _sum(trace, function, bill[1]),
        _sum(trace, function, bill[2]) + _sum(trace, lines.function[last], after),
        trace.share,
    )


def oracle(entries: Entries) -> Outcome:
    """Who knows the future keeps a replica where that is shorter than a start, else starts one just in time."""
    trace, scored = entries.trace, entries.begin >= entries.trace.scored_from * MINUTE
    gap = np.where(entries.first, entries.cold, np.maximum(np.nan_to_num(entries.idle), 0.0))
    idle = np.minimum(gap, entries.cold) + (entries.calls - 1) * np.minimum(entries.inner, entries.cold)
    zeros = np.zeros(trace.size)
    calls = _sum(trace, entries.function, np.where(scored, entries.calls, 0))
    return Outcome(calls, zeros, zeros, _sum(trace, entries.function, np.where(scored, idle, 0.0)), trace.share)


def _sum(trace: Trace, function: np.ndarray, values: Floats) -> Floats:
    found: Floats = np.bincount(function, values, trace.size).astype(np.float64)
    return found
