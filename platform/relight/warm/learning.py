"""What relight's policy learns of a trace, and the plans that it makes of it as the trace goes on.

Nothing that is learned depends on the plans: idle times are those of calls that nothing delays. So all of it is laid
out beforehand, in arrays over the whole trace (which function needs a plan at which moment and pace, what its last idle
times were then, which hours nobody had called in), and only the histograms are gone through moment by moment, as they
fade. The plans themselves are made thousands at once.

Entries are sorted by function; those of one function in one epoch are a *run*. Plans are made once per run and pace, of
what was known before the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from relight.decide import keepalive
from relight.decide.hours import HOUR, UNKNOWN, WEEK, watched
from relight.decide.idletimes import (
    CLASSES,
    RECENT,
    SPAN,
    Bools,
    Counted,
    Floats,
    IdleTimes,
    Ints,
    Known,
    counted,
    pace_of,
    runs,
)
from relight.decide.keepalive import Costs, Plans, Prices
from relight.warm.lines import Plan
from relight.warm.simulating import Entries

BATCH = 2048
"""Plans that are made at once: enough for arrays to pay, few enough for a processor's cache."""


def learned(entries: Entries, prices: Prices, epoch: float, *, seasons: bool = True, prompt: bool = False) -> Plan:
    """The plans in force after each entry. ``epoch``: minutes from one round of learning to the next.

    ``seasons``: whether the hour of the week counts; a trace begins on a Monday at 00:00. ``prompt``: whether the idle
    times that end in an epoch count for the plans made in it, as they do for a policy that decides at each call.
    """
    trace = entries.trace
    costs = Costs(trace.cold, trace.share, prices)
    course = Course(entries, epoch, prompt=prompt)
    times = IdleTimes(trace.size)
    made = [keepalive.prior(costs)]
    waiting: list[tuple[Floats, Floats]] = []
    done = end = 0

    def make() -> None:
        at = course.order[done:end]
        function = course.function[at]
        known = course.known(at, *(np.concatenate(column) for column in zip(*waiting, strict=True)))
        hour = course.hour[at] % WEEK if seasons else None
        made.append(keepalive.decide(known, costs.of(function), hour))
        waiting.clear()

    for begin, end, samples in course.rounds():
        at = course.order[begin:end]
        if prompt:
            times.count(samples)
        waiting.append(times.chances(course.function[at], course.pace[at]))
        if end - done >= BATCH:
            make()
            done = end
        if not prompt:
            times.count(samples)
    if end > done:
        make()
    return course.spread(made)


class Course:
    """Which plans a trace needs when, and what is known for each."""

    def __init__(self, entries: Entries, epoch: float, *, prompt: bool = False) -> None:
        trace = entries.trace
        self._entries = entries
        self._pace = _paces(entries)
        moment = (trace.minute // epoch).astype(np.int64)
        self._run = np.cumsum(entries.first | (np.diff(moment, prepend=-1) != 0)) - 1
        self._start = runs(self._run)
        self._moment = moment
        between = np.nan_to_num(entries.idle) > 0.0
        self._between = np.flatnonzero(between)
        before: Ints = np.cumsum(between) - between
        here = entries.function[self._start]
        own = np.minimum(np.searchsorted(entries.function, np.arange(trace.size)), max(len(entries) - 1, 0))
        self._base: Ints = before[own]
        """Idle times between entries that ended before the first entry of each function, of all functions,"""
        self._before: Ints = before[self._start]
        """and those that count for the plans of each run."""
        # A function is known from the epoch on that follows its first idle time.
        sampled = between | (entries.inner > 0.0)
        count: Ints = np.cumsum(sampled) - sampled
        taught = count[self._start]
        if prompt:
            last = np.append(self._start[1:], len(entries)) - 1
            self._before = before[last] + between[last]
            taught = count[last] + sampled[last]
        self._known_run: Bools = taught > count[own[here]]
        needed = np.zeros((len(self._start), CLASSES), bool)
        needed[self._run, self._pace] = True
        needed[~self._known_run] = False
        self._number = np.cumsum(needed).reshape(needed.shape) - 1
        run, self.pace = np.nonzero(needed)
        self._run_of = run
        self.function = here[run]
        self.hour = (trace.minute[self._start[run]] // 60).astype(np.int64)
        self._when = moment[self._start[run]]
        self.order = in_order(self._when)
        """Plans by moment. Their numbers are by function."""

    def rounds(self) -> Iterator[tuple[int, int, Counted]]:
        """Of each epoch with entries: begin and end in ``order`` of the plans it needs, and what it teaches."""
        entries = self._entries
        inside = np.flatnonzero(entries.inner > 0.0)
        rows = np.concatenate((self._between, inside))
        begun = np.concatenate((self._between - 1, inside))
        seconds = np.concatenate((entries.idle[self._between], entries.inner[inside]))
        weight = np.concatenate((np.ones(len(self._between)), entries.calls[inside] - 1.0))
        # Epochs are numbered anew, so that those without entries take no room.
        in_turn = self._moment[in_order(self._moment)]
        moments = in_turn[runs(in_turn)]
        epoch = np.searchsorted(moments, self._moment[rows])
        pair = (epoch * entries.trace.size + entries.function[rows]) * CLASSES + self._pace[begun]
        all_ = counted(pair, seconds, weight)
        each = entries.trace.size * CLASSES
        ends = np.searchsorted(all_.pair, each * np.arange(1, len(moments) + 1))
        cells = np.searchsorted(all_.place, ends)
        plans = np.searchsorted(self._when[self.order], moments, side="right")
        begin = pairs = cell = 0
        for number in range(len(moments)):
            end, last, over = int(plans[number]), int(ends[number]), int(cells[number])
            yield (
                begin,
                end,
                Counted(
                    all_.pair[pairs:last] - number * each,
                    all_.place[cell:over] - pairs,
                    all_.bin[cell:over],
                    all_.number[cell:over],
                ),
            )
            begin, pairs, cell = end, last, over

    def known(self, at: Ints, chances: Floats, samples: Floats) -> Known:
        """What is known when the plans ``at`` are made, but for the histograms, which are given."""
        entries = self._entries
        stop = self._before[self._run_of[at]]
        start = self._base[self.function[at]]
        place = stop[:, None] + np.arange(-RECENT, 0)
        inside = place >= start[:, None]
        rows = self._between[np.where(inside, place, 0)] if len(self._between) else np.zeros(place.shape, np.int64)
        recent = np.where(inside, entries.idle[rows], np.nan).astype(np.float32)
        hour = (entries.end[rows - 1] // HOUR).astype(np.int64) % WEEK
        began = np.where(inside, hour, UNKNOWN).astype(np.uint8)
        return Known(self.pace[at], chances, samples, recent, began, self._week(self.function[at], self.hour[at]))

    def _week(self, function: Ints, hour: Ints) -> Callable[[Ints], NDArray[np.float16]]:
        """The calls of each hour of the week as they are known at the hours of plans."""

        def week(some: Ints) -> NDArray[np.float16]:
            slot = np.arange(WEEK)
            now = hour[some][:, None]
            seen = now - 1 - (now - 1 - slot) % WEEK
            found = self._watched[function[some][:, None], np.maximum(seen, 0)]
            return np.where(seen >= 0, found, np.float16(np.nan))

        return week

    @cached_property
    def _watched(self) -> NDArray[np.float16]:
        """``[functions, hours of the trace]``: what is known of an hour of the week after this one of its kind."""
        entries = self._entries
        trace = entries.trace
        hours = int(trace.minutes // 60) + 1
        hour = (trace.minute // 60).astype(np.int64)
        calls = np.bincount(entries.function * hours + hour, minlength=trace.size * hours).reshape(trace.size, hours)
        found = np.full((trace.size, hours), np.nan, np.float16)
        for begin in range(0, hours, WEEK):
            here = slice(begin, min(begin + WEEK, hours))
            if begin:
                found[:, here] = found[:, begin - WEEK : begin - WEEK + here.stop - begin]
            watched(found, here, calls[:, here].astype(np.float64))
        return found

    def spread(self, made: list[Plans]) -> Plan:
        """The plans, for each entry. ``made``: before anything is known, and by ``order``."""
        known, place = self._known_run[self._run], self._number[self._run, self._pace]
        prior = len(self.order)
        which = np.where(known, place, self._entries.function + prior)

        def column(name: str) -> Floats:
            first, *rest = (getattr(one, name) for one in made)
            found = np.empty(prior + len(first))
            found[prior:] = first
            if rest:
                found[self.order] = np.concatenate(rest)
            return found[which]

        return Plan(column("keep"), column("ready"), column("until"))


def in_order(epoch: Ints) -> Ints:
    """Rows by epoch, those of one epoch as they are."""
    # Numbers of 16 bits are sorted by radix, ten times as quickly.
    few = len(epoch) > 0 and epoch.max() < 2**15
    return np.argsort(epoch.astype(np.int16) if few else epoch, kind="stable")


def _paces(entries: Entries) -> Ints:
    """The class of pace of each entry, from the idle times that ended with it or just before."""
    idle = np.maximum(np.nan_to_num(entries.idle), 0.0)
    total = np.cumsum(idle)
    at = np.arange(len(idle))
    begin = np.maximum.accumulate(np.where(entries.first, at, 0))
    seen = np.minimum(at - begin, SPAN)
    mean = (total - total[at - seen]) / np.maximum(seen, 1)
    return pace_of(np.where(seen > 0, mean, np.nan))
