"""Entries of a trace under a plan: which of their calls wait, and how long replicas idle between them.

A *line* is an entry, or one call of an entry whose calls must be judged singly (a second stretch of its plan might
begin between two of them: rare). The calls of a line come at even intervals. Either a replica stays up from one to the
next (they are *together*), or it never does (they are *apart*). In a line that is apart, a call that starts a replica
at ``t`` is followed by as many that wait as come before ``t + cold``; then one either comes when it is gone and starts
the next, or still finds it, and the one after that starts the next. Which of both is the same all along the line: so
cold starts come at even intervals, and all sums are closed.

What a line needs to know of those before it is one number: *came*, when the last replica started by them was ready, if
that was after their last call.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from relight.decide.idletimes import Bools, Floats, Ints

if TYPE_CHECKING:
    from relight.warm.simulating import Entries

BLOCK = 2**15
"""Lines that are judged at once: what is made of them stays in a processor's cache."""
TIE = 1e-8
"""Seconds. A call that comes at the moment at which a replica is ready does not wait, whatever was rounded."""


@dataclass(frozen=True)
class Plan:
    """What follows each entry of a trace: arrays of its length, or numbers for all."""

    keep: Floats | float
    ready: Floats | float = np.inf
    until: Floats | float = np.inf


@dataclass(frozen=True)
class Judged:
    """Lines, each for what it knows of those before. Arrays of one length; calls are counted from 0 in each line."""

    gap: Floats
    """Idle seconds before the line."""
    begun: Bools
    """Whether its first call starts a replica, or finds one on its way."""
    ready: Floats
    """When the replica is ready that the first call waits for; -inf: it does not wait."""
    late: Floats
    """Calls that wait for that one."""
    again: Floats
    """The call that starts the first replica of those that come at even intervals; without one, past the end."""
    out: Floats
    """When the last replica that is known of is ready; -inf where that is over."""


@dataclass(frozen=True)
class Bill:
    """Per line: calls that waited, seconds they waited, seconds a replica idled before and between its calls."""

    cold: Floats
    waiting: Floats
    idle: Floats


@dataclass(frozen=True)
class Lines:
    """All lines of a trace, sorted by function and time. Arrays of one length; seconds."""

    function: Ints
    first: Bools
    begin: Floats
    calls: Floats
    space: Floats
    end: Floats
    """Arrival of the last call."""
    before: Floats
    """Arrival of the last call of the line before; -inf for a first one."""
    run: Floats
    cold: Floats
    own: tuple[Floats, Floats, Floats]
    """Keep, ready, until: what follows the line,"""
    held: tuple[Floats, Floats, Floats]
    """and what follows the line before it."""
    apart: Bools
    stretches: bool
    """Whether any plan has a second stretch."""

    @classmethod
    def of(cls, entries: Entries, plan: Plan) -> Lines:
        size = len(entries)
        own = tuple(np.broadcast_to(np.asarray(part, np.float64), size) for part in (plan.keep, plan.ready, plan.until))
        columns = (entries.function, entries.begin, entries.calls, entries.space, entries.end)
        stretches = bool(np.isfinite(own[1]).any())
        apart = entries.inner > own[0]
        function, begin, calls, space, end = columns
        run, cold = entries.run, entries.cold
        if stretches and (single := apart & np.isfinite(own[1])).any():
            number = np.where(single, entries.calls, 1.0).astype(np.int64)
            at = np.repeat(np.arange(size), number)
            place = np.arange(len(at)) - np.repeat(np.cumsum(number) - number, number)
            alone = single[at]
            function, space, run, cold = function[at], space[at], run[at], cold[at]
            begin = begin[at] + place * space
            calls = np.where(alone, 1.0, calls[at])
            end = begin + (calls - 1) * space
            own = tuple(part[at] for part in own)
            apart = apart[at] & ~alone
        first = starts(function)
        before = _shifted(end)
        before[first] = -np.inf
        keep, ready, until = own
        held = (_shifted(keep), _shifted(ready), _shifted(until)) if stretches else (_shifted(keep), ready, until)
        return cls(
            function, first, begin, calls, space, end, before, run, cold, (keep, ready, until), held, apart, stretches
        )

    def settled(self) -> tuple[Floats, Floats]:
        """``came`` and ``out`` of all lines, as they are when nothing changes any more."""
        size = len(self.function)
        came = np.full(size, -np.inf)
        out = np.empty(size)
        for begin in range(0, size, BLOCK):
            at = slice(begin, begin + BLOCK)
            out[at] = self.judge(at, came[at]).out
        changed = np.arange(size - 1)
        # As often as the longest chain of lines is long of which each starts what the next one waits for.
        while len(changed):
            after = changed + 1
            reached = np.where(self.first[after] | (out[changed] <= self.end[changed]), -np.inf, out[changed])
            new = reached != came[after]
            changed, reached = after[new], reached[new]
            came[changed] = reached
            out[changed] = self.judge(changed, reached).out
            changed = changed[changed + 1 < size]
        return came, out

    def judge(self, at: Ints | slice, came: Floats) -> Judged:
        """Some lines, each for its ``came`` (-inf: none)."""
        begin, space, calls = self.begin[at], self.space[at], self.calls[at]
        gap = begin - (np.maximum(self.before[at], came) + self.run[at])
        held, first = self.held[0][at], self.first[at]
        begun = (gap > held) | first
        ready = np.where(begun, begin + self.cold[at], np.where(came > begin, came, -np.inf))
        if self.stretches:
            then, until = self.held[1][at], self.held[2][at]
            warm = begun & (gap >= then) & (gap <= until) & ~first
            coming = begun & (gap < then) & (gap >= np.maximum(then - self.cold[at], held)) & ~first
            begun &= ~warm
            ready = np.where(warm, -np.inf, ready)
            with np.errstate(invalid="ignore"):  # infinities where nothing comes
                ready = np.where(coming, begin + (then - gap), ready)
        late = np.clip(np.ceil((ready - begin - TIE) / space), 0.0, calls)
        again = np.full(len(late), np.inf)
        out = ready.copy()
        apart = np.flatnonzero(self.apart[at])
        if len(apart):
            self._repeat(at if isinstance(at, slice) else at[apart], apart, begun, ready, late, again, out)
        return Judged(gap, begun, ready, late, again, out)

    def _repeat(
        self,
        at: Ints | slice,
        apart: Ints,
        begun: Bools,
        ready: Floats,
        late: Floats,
        again: Floats,
        out: Floats,
    ) -> None:
        """Fill in ``again`` and ``out`` of the lines that are apart."""
        rows = apart + at.start if isinstance(at, slice) else at
        late, ready, begun = late[apart], ready[apart], begun[apart]
        begin, calls, cold = self.begin[rows], self.calls[rows], self.cold[rows]
        space, keep = self.space[rows], self.own[0][rows]
        # The call after those that wait comes when the replica is gone, or still finds it, as one that never waited.
        gone = begin + late * space - ready - self.run[rows] > keep
        # A whole start by the first call is the first of them; one that was on its way is not.
        whole = begun & (ready == begin + cold)
        found = np.where(whole, 0.0, np.where(gone & (late > 0), late, late + 1.0))
        found = np.where(found < calls, found, np.inf)
        period = self._period[1][rows]
        with np.errstate(invalid="ignore"):
            last = found + np.floor((calls - 1.0 - found) / period) * period
            out[apart] = np.where(np.isfinite(found), begin + last * space + cold, ready)
        again[apart] = found

    @cached_property
    def _period(self) -> tuple[Floats, Floats, Floats]:
        """Where lines are apart: calls that wait for a start, calls from one to the next, and the idle seconds of the
        call between that still finds a replica; -1: there is none."""
        late = np.ceil((self.cold - TIE) / self.space)
        step = np.maximum(late, 1.0)
        gap = step * self.space
        gap -= self.cold
        gap -= self.run
        found = gap <= self.own[0]
        np.maximum(gap, 0.0, out=gap)
        gap[~found] = -1.0
        step += found
        return late, step, gap

    def bill(self, at: Ints, came: Floats, scored_from: float) -> Bill:
        """What some lines cost, idle seconds before ``scored_from`` left out."""
        judged = self.judge(at, came)
        begin, space, calls, run = self.begin[at], self.space[at], self.calls[at], self.run[at]
        first, late = self.first[at], judged.late
        gap = np.where(first, 0.0, np.maximum(judged.gap, 0.0))
        held = tuple(part[at] for part in self.held)
        idle = self._up(gap, held, self.cold[at])
        cut = np.flatnonzero((begin - gap < scored_from) & (gap > 0.0))
        if len(cut):
            early = np.minimum(scored_from - (begin[cut] - gap[cut]), gap[cut])
            idle[cut] -= self._up(early, tuple(part[cut] for part in held), self.cold[at[cut]])
        wait = np.where(late > 0, judged.ready - begin, 0.0)
        idle += np.where(judged.begun, wait, 0.0)
        waiting = late * wait - space * late * (late - 1) / 2
        apart = self.apart[at]
        inner = np.maximum(space - run, 0.0)
        rest = calls - late
        after_wait = np.maximum(late * space - wait - run, 0.0) + np.maximum(rest - 1, 0.0) * inner
        inside = np.where(late > 0, np.where(rest > 0, after_wait, 0.0), (calls - 1) * inner)
        inside[apart] = 0.0
        idle += inside
        some = np.flatnonzero(apart)
        if len(some):
            self._bill_apart(at[some], some, judged, late, waiting, idle)
        return Bill(late, waiting, idle)

    def _bill_apart(self, rows: Ints, some: Ints, judged: Judged, cold: Floats, waiting: Floats, idle: Floats) -> None:
        """Add what the repeated starts of lines cost that are apart."""
        begin, space, calls = self.begin[rows], self.space[rows], self.calls[rows]
        keep, start = self.own[0][rows], self.cold[rows]
        late, again = judged.late[some], judged.again[some]
        each, period, found = (part[rows] for part in self._period)
        # A whole start by the first call is counted with those that repeat it.
        whole = again == 0.0
        cold[some] = np.where(whole, 0.0, cold[some])
        waiting[some] = np.where(whole, 0.0, waiting[some])
        idle[some] -= np.where(whole & (late > 0), judged.ready[some] - begin, 0.0)
        more = again < calls
        reached = np.where(more, again, 0.0)
        number = np.where(more, np.floor((calls - 1.0 - reached) / period) + 1.0, 0.0)
        rest = calls - 1.0 - (reached + (number - 1.0) * period)
        final = np.where(more, np.minimum(each, rest + 1.0), 0.0)
        before = np.maximum(number - 1.0, 0.0)
        cold[some] += before * each + final
        waiting[some] += before * (each * start - space * each * (each - 1) / 2)
        waiting[some] += final * start - space * final * (final - 1) / 2
        idle[some] += number * start + before * (keep + np.maximum(found, 0.0))
        idle[some] += np.where(more & (rest >= period - 1.0), np.maximum(found, 0.0), 0.0)
        # Between those that waited for a start of before, or for none, and the first that starts one here.
        with np.errstate(invalid="ignore"):
            gap = np.maximum(begin + late * space - judged.ready[some] - self.run[rows], 0.0)
        stayed = ~whole & (late > 0) & (late < calls) & (again != late)
        idle[some] += np.where(more & ~whole, keep, 0.0) + np.where(stayed, gap, 0.0)

    def after(self, at: Ints, out: Floats, scored_from: float, ends: float) -> Floats:
        """Idle seconds after some lines, to the end of the trace."""
        free = np.maximum(self.end[at], out) + self.run[at]
        gap = np.maximum(ends - free, 0.0)
        early = np.clip(scored_from - free, 0.0, gap)
        own, cold = tuple(part[at] for part in self.own), self.cold[at]
        return self._up(gap, own, cold) - self._up(early, own, cold)

    def _up(self, gap: Floats, plan: tuple[Floats, ...], cold: Floats) -> Floats:
        """Seconds of an idle time of length ``gap`` that a replica is up."""
        keep, ready, until = plan
        found: Floats = np.minimum(gap, keep)
        if self.stretches:
            found += np.maximum(np.minimum(gap, until) - np.maximum(ready - cold, keep), 0.0)
        return found


def starts(function: Ints) -> Bools:
    """Where each function's part of a sorted column begins."""
    found = np.ones(len(function), bool)
    np.not_equal(function[1:], function[:-1], out=found[1:])
    return found


def _shifted(values: Floats) -> Floats:
    """What stands one place earlier; infinite for the first."""
    found = np.full(len(values), np.inf)
    found[1:] = values[:-1]
    return found
