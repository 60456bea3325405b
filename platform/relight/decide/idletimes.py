"""What is remembered of functions' idle times: a histogram per pace of calls, and the last idle times themselves.

An idle time begins when the last call has ended and ends with the next call. Its length depends on how fast calls came
just before (a burst goes on, a quiet night goes on), so there is one histogram per *pace*: the mean of the last few
idle times, in four classes. Bins grow by a constant factor, for a second matters at a minute and not at a day. Counts
fade with the number of samples, not with time: a new pattern forgets the old one after as many calls as it takes to
know it, and a function that is called once a day does not forget what it was.

The last idle times are kept as they are too, since bins are too coarse for what comes exactly every six hours; and the
hour of the week in which each began, with the calls of each hour of the week (``hours``).

All is held for many functions at once, in arrays with the function as the first axis: ``BYTES`` a function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relight.decide.hours import UNKNOWN, WEEK

Floats = NDArray[np.floating]
Ints = NDArray[np.integer]
Bools = NDArray[np.bool_]

BINS = 64
FIRST = 1.0
"""Upper edge of the first bin, in seconds."""
LAST = 2.0 * 86400.0
"""Lower edge of the last bin, which holds all that is longer: idle times over two days are all alike."""
RATIO = float((LAST / FIRST) ** (1 / (BINS - 2)))
EDGES: Floats = np.concatenate(([0.0], np.geomspace(FIRST, LAST, BINS - 1), [LAST * RATIO]))
"""Where the bins begin, and the end of the last one."""
WIDTHS: Floats = np.diff(EDGES)
_SCALE = 1.0 / np.log(RATIO)

PACES: Floats = np.array([75.0, 300.0, 1800.0])
"""Between the classes of pace, in seconds: below the first is a busy function, above the last one that sleeps."""
CLASSES = len(PACES) + 1
SPAN = 4
"""Idle times that make the pace."""
RECENT = 24
"""Idle times that are kept as they are."""
MEMORY = 160.0
"""Samples of one pace after which older ones count a third (1/e). Anything from 80 to 400 costs the same."""
FLEET_FADE = 0.98
"""What is left of all functions' common histogram after one more round of learning."""
FLEET_SHARE = 5.0
"""Samples of one bin and round that one function brings to the common histogram at most."""
BYTES = CLASSES * BINS * 2 + RECENT * (4 + 1) + WEEK * 2


def bin_of(seconds: Floats) -> Ints:
    """The bin of each idle time (0 and below: the first)."""
    positive = np.maximum(np.asarray(seconds, dtype=np.float64), 1e-9)
    at = np.floor(np.log(positive / FIRST) * _SCALE + 1e-9) + 1
    found: Ints = np.clip(at, 0, BINS - 1).astype(np.int64)
    return found


def pace_of(mean: Floats) -> Ints:
    """The class of each mean idle time; of one that is not known (NaN), the last: a function that sleeps."""
    found: Ints = np.searchsorted(PACES, np.nan_to_num(mean, nan=np.inf), side="right").astype(np.int64)
    return found


@dataclass(frozen=True)
class Known:
    """What is known of some functions at one moment, each at its pace: all that plans are made of."""

    pace: Ints
    chances: Floats
    """``[functions, BINS]``, each row sums to one,"""
    samples: Floats
    """and how many idle times of its own at that pace they are made of, besides all functions' ``FLEET_WEIGHT``."""
    recent: Floats
    """``[functions, RECENT]``, the newest last; NaN where there were fewer."""
    began: NDArray[np.uint8]
    week: Callable[[Ints], NDArray[np.float16]]
    """Calls in each hour of the week of some of them, by place; few are asked for."""


@dataclass(frozen=True)
class Counted:
    """Idle times, counted: of each *pair* of function and pace (``function * CLASSES + pace``), how many in which bin.

    ``pair`` rises. Cells follow, sorted by it: the ``place`` of its pair in ``pair``, its ``bin``, and the ``number``.
    """

    pair: Ints
    place: Ints
    bin: Ints
    number: Floats


def counted(pair: Ints, seconds: Floats, weight: Floats) -> Counted:
    """Idle times by pair and bin; ``weight``: how many there were of that length."""
    cell = pair * BINS + bin_of(seconds)
    order = np.argsort(cell)
    cell = cell[order]
    start = runs(cell)
    number = np.add.reduceat(weight[order], start) if len(start) else np.zeros(0)
    cell = cell[start]
    whose = cell // BINS
    begins = runs(whose)
    place = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(cell)))
    return Counted(whose[begins], place, cell % BINS, number)


def runs(ordered: Ints) -> Ints:
    """Where each run of equal numbers begins."""
    first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return np.flatnonzero(first)


class IdleTimes:
    """The idle times of ``size`` functions, and what all of them have in common."""

    def __init__(self, size: int) -> None:
        self.counts = np.zeros((size, CLASSES, BINS), np.float16)
        self.recent = np.full((size, RECENT), np.nan, np.float32)
        """The newest last; NaN where there were fewer."""
        self.began = np.full((size, RECENT), UNKNOWN, np.uint8)
        """The hour of the week in which each of ``recent`` began."""
        self.week = np.full((size, WEEK), np.nan, np.float16)
        """Calls in each hour of the week; NaN where it was not yet watched."""
        self.fleet: Floats = np.zeros((CLASSES, BINS))
        """Of all functions together: what one of which little is known is taken for."""

    def __len__(self) -> int:
        return len(self.counts)

    def grow(self, size: int) -> None:
        """Room for ``size`` functions."""
        more = IdleTimes(size - len(self))
        self.counts = np.concatenate((self.counts, more.counts))
        self.recent = np.concatenate((self.recent, more.recent))
        self.began = np.concatenate((self.began, more.began))
        self.week = np.concatenate((self.week, more.week))

    def forget(self, row: int) -> None:
        """Make a row one of a function that was never seen."""
        self.counts[row] = 0
        self.recent[row] = np.nan
        self.began[row] = UNKNOWN
        self.week[row] = np.nan

    def pace(self, rows: Ints) -> Ints:
        """The present class of some functions."""
        last = self.recent[rows, -SPAN:].astype(np.float64)
        known = ~np.isnan(last)
        n = known.sum(axis=1)
        total = np.where(known, last, 0.0).sum(axis=1)
        return pace_of(np.where(n > 0, total / np.maximum(n, 1), np.nan))

    def learn(
        self,
        function: Ints,
        pace: Ints,
        seconds: Floats,
        weight: Floats,
        kept: Bools,
        began: Ints | None = None,
    ) -> Ints:
        """Put idle times in, each under the pace that it began at; answers the functions that have new ones.

        In the order in which they happened, for each function. ``weight``: how many there were of that length.
        ``kept``: whether it is one of those that the next pace is made of (calls of one burst are not). ``began``: the
        hour of the week in which each began, where that is known.
        """
        new = counted(function * CLASSES + pace, seconds, weight)
        self.count(new)
        hours = np.full(len(function), UNKNOWN) if began is None else began
        self._keep(function[kept], seconds[kept], hours[kept].astype(np.uint8))
        active = new.pair // CLASSES
        return active[runs(active)]

    def count(self, new: Counted) -> None:
        """Put counted idle times into the histograms, which fade by as many."""
        at, pace = new.pair // CLASSES, new.pair % CLASSES
        counts = self.counts[at, pace].astype(np.float64)
        counts *= np.exp(-np.bincount(new.place, new.number, len(at)) / MEMORY)[:, None]
        counts[new.place, new.bin] += new.number
        self.counts[at, pace] = np.minimum(counts, 60000.0)
        cell = pace[new.place] * BINS + new.bin
        common = np.bincount(cell, np.minimum(new.number, FLEET_SHARE), CLASSES * BINS)
        self.fleet = self.fleet * FLEET_FADE + common.reshape(CLASSES, BINS) / max(len(self), 1)

    def _keep(self, function: Ints, seconds: Floats, began: Ints) -> None:
        order = np.argsort(function, kind="stable")
        function, seconds, began = function[order], seconds[order], began[order]
        start = runs(function)
        if not len(start):
            return
        rows, number = function[start], np.append(start[1:], len(function)) - start
        # The newest of what was kept and what is new: places below zero are in what was kept, counted from its end.
        place = np.arange(-RECENT, 0) + number[:, None]
        old, new = place + RECENT, np.maximum(start[:, None] + place, 0)
        before, each = place < 0, np.arange(len(rows))[:, None]
        old = np.where(before, old, 0)
        self.recent[rows] = np.where(before, self.recent[rows][each, old], seconds[new])
        self.began[rows] = np.where(before, self.began[rows][each, old], began[new])

    def known(self, rows: Ints, pace: Ints) -> Known:
        """What is known of some functions, each at a pace."""
        chances, samples = self.chances(rows, pace)
        return Known(pace, chances, samples, self.recent[rows], self.began[rows], lambda some: self.week[rows[some]])

    def chances(self, rows: Ints, pace: Ints) -> tuple[Floats, Floats]:
        """For some functions, each at a pace: how likely each bin is, ``[functions, BINS]``, and of how many samples.

        What is known of a function counts by its samples; the fleet counts as ``FLEET_WEIGHT`` of them, and of a fleet
        that knows little itself, all bins are alike.
        """
        total = self.fleet.sum(axis=-1, keepdims=True)
        fleet = FLEET_WEIGHT * (self.fleet + 1.0 / BINS) / (total + 1.0)
        own = self.counts[rows, pace].astype(np.float64)
        samples = own.sum(axis=-1)
        own += fleet[pace]
        own /= samples[:, None] + FLEET_WEIGHT
        return own, samples


FLEET_WEIGHT = 4.0
"""Samples of its own that weigh as much as all that is known of the other functions."""


def merged(first: Floats, second: Floats) -> Floats:
    """Histograms of two observers of one function as one: counts add up; what overflows is scaled down together."""
    total = first.astype(np.float64) + second.astype(np.float64)
    top = total.max(axis=-1, keepdims=True)
    found: Floats = (total * np.minimum(1.0, 60000.0 / np.maximum(top, 1.0))).astype(np.float16)
    return found
