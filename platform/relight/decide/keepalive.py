"""How long a replica is kept after the last call, and when one is started ahead of the next: both weighed in money.

While a replica idles it costs ``idle`` per GPU-second; a call that finds none waits for a cold start, which costs
``waiting`` per second. With the chances of the next idle time (``idletimes``), being warm for another stretch of it
pays where the chance that a call comes in it, times what the cold start would cost, is more than the idle time it is
expected to burn. A plan is the best beginning of the idle time to be warm in (``keep``), and after it the best single
stretch ``[ready, until]`` to be warm again, if starting for that pays too. This is the hybrid histogram policy of
*Serverless in the Wild* (ATC'20: keep-alive window, pre-warm window, from an idle-time histogram) with money in the
place of fixed percentiles: where idle times are all alike it is a short stretch just ahead of the call, and where
nothing pays, nothing.

Bins are too coarse for timers with long periods. ``windows`` makes plans from the last idle times themselves: a stretch
from the lowest to the highest of them, with some of the outermost left out, judged by what it would have cost. It is
taken only where it does better on those idle times than the plan from the histogram, and is worth more. That is the
representativeness test: what was learned must explain what was last seen.

Where the hour of the week is known in which an idle time begins, the same is done once more with those of the last ones
that began at this time of day, and a stretch that falls on a day without calls is moved to the next one with some
(``hours``). It must do better than the plan on those idle times, by what so few of them leave open (``SURE``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from relight.decide import hours
from relight.decide.idletimes import BINS, CLASSES, EDGES, FLEET_WEIGHT, WIDTHS, Bools, Floats, Ints, Known

MARGIN = 2.0
"""Seconds that a stretch for a timer is longer at both ends: for what a call needs to arrive."""
FEWEST = 4
"""Idle times inside a stretch that is made of them."""
SURE = 0.1
"""Of a cold start's cost, by which a stretch for the time of day must save more per idle time than the plan it replaces
would have: it is made of few idle times, and the best of several."""
SURE_NEW = 0.2
"""The same for a stretch of the newest idle times."""
NEWEST = 6
"""Idle times that are looked at by themselves: where a pattern changes, they say so long before the others are gone."""
KNOWN_ALREADY = 0.05
"""Share of the older ones in the stretch that the newest make, from which on it is no new pattern."""
DAYS = 3
"""Days of the week on which idle times must have begun at an hour: the calls of one afternoon are no habit."""
SLEEPS = CLASSES - 1
"""The pace at which the time of day counts: what is called fast just now is not let go for a habit of the hour."""
SLOW = 2
"""The pace from which on a change counts: who is called faster has short idle times that are not among the last."""
_TRIMS = ((0, 0), (1, 1), (2, 2), (0, 2), (2, 0), (4, 2), (2, 4), (0, 4), (4, 4))
"""Idle times left out as outliers, at the low and the high end."""
_MOST_LEFT_OUT = max(high for _, high in _TRIMS)


@dataclass(frozen=True)
class Prices:
    """Money per second. The defaults are those of the traces that the policy is measured by."""

    idle: float = 0.0008
    """Of a whole GPU that idles; 2.9 an hour."""
    waiting: float = 0.004
    """Of a caller that waits for a cold start."""


@dataclass(frozen=True)
class Costs:
    """What idling and starting cost, per function. Arrays of one length."""

    cold: Floats
    """Seconds of a cold start."""
    share: Floats
    """Of one GPU that a replica occupies."""
    prices: Prices = Prices()

    @property
    def rate(self) -> Floats:
        """Money per idle second."""
        found: Floats = self.share * self.prices.idle
        return found

    @property
    def penalty(self) -> Floats:
        """Money for one cold start: the caller waits, and the GPU is occupied while the model loads."""
        found: Floats = self.cold * (self.prices.waiting + self.rate)
        return found

    @property
    def break_even(self) -> Floats:
        """Idle seconds that cost as much as one cold start."""
        found: Floats = self.penalty / np.maximum(self.rate, 1e-12)
        return found

    def of(self, rows: Ints) -> Costs:
        return Costs(self.cold[rows], self.share[rows], self.prices)


@dataclass(frozen=True)
class Plans:
    """Seconds of idle time; arrays of one length. Without a second stretch, ``ready`` and ``until`` are infinite."""

    keep: Floats
    ready: Floats
    """When a replica is ready again; it starts its cold start earlier."""
    until: Floats
    gain: Floats
    """Money that the plan is expected to save over letting go at once, per idle time."""
    by_hour: Bools | None = None
    """Whether it is one for this time of day."""


def prior(costs: Costs) -> Plans:
    """For functions of which nothing is known at all: half of the break-even, since most idle times of most functions
    are longer than that, and for those it costs half as much as the whole."""
    keep = costs.break_even / 2
    none = np.full_like(keep, np.inf)
    return Plans(keep, none, none.copy(), np.zeros_like(keep))


def plan(chances: Floats, costs: Costs) -> Plans:
    """The best plan of each function, by the chances ``[functions, BINS]`` of each bin."""
    rate, penalty = costs.rate[:, None], costs.penalty[:, None]
    size = len(chances)
    alive = np.zeros((size, BINS + 1))
    np.cumsum(chances[:, ::-1], axis=1, out=alive[:, BINS - 1 :: -1])
    worth = chances * penalty
    worth -= (alive[:, :BINS] - chances / 2) * (WIDTHS * rate)
    total = np.zeros((size, BINS + 1))
    np.cumsum(worth, axis=1, out=total[:, 1:])
    keep = np.argmax(total, axis=1)
    gain = _at(total, keep)
    # A second stretch from edge a to edge b is worth total[b] - total[a], less a start by whoever is idle till then.
    start = alive
    start *= -rate * costs.cold[:, None]
    start -= total
    start[np.arange(BINS + 1) <= keep[:, None]] = -np.inf
    best = np.maximum.accumulate(start, axis=1)
    total += best
    until = np.argmax(total, axis=1)
    more = _at(total, until)
    ready = np.argmax(start == _at(best, until)[:, None], axis=1)
    pays = (more > 0.0) & (until > ready)
    return Plans(
        EDGES[keep],
        np.where(pays, EDGES[ready], np.inf),
        np.where(pays, EDGES[until], np.inf),
        gain + np.where(pays, more, 0.0),
    )


def windows(recent: Floats, costs: Costs, early: Floats | float = 0.0) -> Plans:
    """The best single stretch for idle times that come alike, from the last ones ``[functions, so many]``.

    ``early``: seconds by which it begins before the first of them is expected.
    """
    ordered = np.sort(recent.astype(np.float64), axis=1)
    known = ~np.isnan(ordered)
    n = known.sum(axis=1)
    total = np.zeros((len(ordered), ordered.shape[1] + 1))
    np.cumsum(np.where(known, ordered, 0.0), axis=1, out=total[:, 1:])
    rate, penalty, load = costs.rate, costs.penalty, costs.rate * costs.cold
    gain = np.zeros(len(recent))
    ready, until = np.full_like(gain, np.inf), np.full_like(gain, np.inf)
    longest = ordered[np.arange(len(ordered))[:, None], np.maximum(n[:, None] - 1 - np.arange(_MOST_LEFT_OUT + 1), 0)]
    with np.errstate(invalid="ignore"):
        for low, high in _TRIMS:
            first, last = ordered[:, low], longest[:, high]
            inside = n - low - high
            # The next one may be a little outside of those that were seen: by as much as they are apart.
            slack = (last - first) / np.maximum(inside - 1, 1) + MARGIN
            a, b = np.maximum(first - slack - early, 0.0), last + slack
            # Only those that were left out can be outside.
            before = (ordered[:, :low] < a[:, None]).sum(axis=1)
            after = (longest[:, :high] > b[:, None]).sum(axis=1)
            hits = n - before - after
            burnt = _at(total, np.maximum(n - after, 0)) - _at(total, before) - hits * a + after * (b - a)
            late = 1.0 - before / np.maximum(n, 1)
            idle = burnt / np.maximum(n, 1) + (b - a) / (n + 1)
            saved = hits / (n + 1) * (penalty + load) - idle * rate - late * load
            better = (inside >= FEWEST) & (saved > gain)
            gain = np.where(better, saved, gain)
            ready, until = np.where(better, a, ready), np.where(better, b, until)
    return Plans(np.zeros_like(gain), ready, until, gain)


def worth(recent: Floats, keep: Floats, ready: Floats, until: Floats, costs: Costs) -> Floats:
    """Money per idle time that plans would have saved on the last idle times. ``keep``… are ``[functions]``."""
    seen = recent.astype(np.float64)
    known = ~np.isnan(seen)
    seen = np.where(known, seen, 0.0)
    keep, ready, until = keep[:, None], ready[:, None], until[:, None]
    warm = (seen <= keep) | ((seen >= ready) & (seen <= until))
    start = np.maximum(ready - costs.cold[:, None], keep)
    idle = np.minimum(seen, keep) + np.maximum(np.minimum(seen, until) - start, 0.0)
    saved = np.where(known, warm * costs.penalty[:, None] - idle * costs.rate[:, None], 0.0)
    found: Floats = saved.sum(axis=1) / (known.sum(axis=1) + 1)
    return found


def decide(known: Known, costs: Costs, hour: Ints | None = None) -> Plans:
    """The plans of some functions, each at its present pace.

    ``hour``: in which hour of the week the idle time begins, per function; None: plans for any hour.
    """
    made = plan(known.chances, costs)
    # A stretch that meets all of n idle times gains n parts of n + 1 of a cold start at most.
    n = (~np.isnan(known.recent)).sum(axis=1)
    some = np.flatnonzero(made.gain < n / (n + 1) * costs.penalty)
    stretch = windows(known.recent[some], costs.of(some))
    better = np.flatnonzero(stretch.gain > made.gain[some])
    at = some[better]
    learned = worth(known.recent[at], made.keep[at], made.ready[at], made.until[at], costs.of(at))
    timer = stretch.gain[better] > learned
    at, better = at[timer], better[timer]
    made.keep[at] = 0.0
    made.ready[at], made.until[at], made.gain[at] = stretch.ready[better], stretch.until[better], stretch.gain[better]
    _follow_change(made, known, costs)
    if hour is not None:
        made = _by_hour(made, known, costs, hour)
    # A start that would begin before the replica goes is none: it is kept all the way.
    joined = made.ready - costs.cold <= made.keep
    return Plans(
        np.where(joined, made.until, made.keep),
        np.where(joined, np.inf, made.ready),
        np.where(joined, np.inf, made.until),
        made.gain,
        made.by_hour,
    )


def _follow_change(made: Plans, known: Known, costs: Costs) -> None:
    """Replace in place the plans that the newest idle times say are of a pattern that is over.

    They say so where they are in a stretch of their own that the plan has no replica up in, and that next to none of
    those before them were in, by the histogram of the present pace. All count that have come since the first of them.
    """
    newest = known.recent[:, -NEWEST:]
    before = worth(newest, made.keep, made.ready, made.until, costs)
    n = (~np.isnan(newest)).sum(axis=1)
    # As much as a stretch that meets all of them can gain at most must be more than what the plan would have saved.
    some = np.flatnonzero((n / (n + 1) * costs.penalty > before + SURE_NEW * costs.penalty) & (known.pace >= SLOW))
    stretch = windows(newest[some], costs.of(some))
    found = stretch.gain > before[some] + SURE_NEW * costs.penalty[some]
    some, ready, until, gain = some[found], stretch.ready[found], stretch.until[found], stretch.gain[found]
    inside = (known.recent[some] >= ready[:, None]) & (known.recent[some] <= until[:, None])
    samples = known.samples[some]
    bins = (EDGES[1:] > ready[:, None]) & (EDGES[:-1] < until[:, None])
    counted = (known.chances[some] * bins).sum(axis=1) * (samples + FLEET_WEIGHT)
    since = inside.sum(axis=1)
    new = counted - since <= KNOWN_ALREADY * np.maximum(samples - since, FLEET_WEIGHT)
    at = some[new]
    made.keep[at] = 0.0
    made.ready[at], made.until[at], made.gain[at] = ready[new], until[new], gain[new]


def _by_hour(made: Plans, known: Known, costs: Costs, hour: Ints) -> Plans:
    """The plans, with those replaced in place that the time of day and the day of the week make better ones of."""
    some = np.flatnonzero(known.pace == SLEEPS)
    same = hours.alike(known.began[some], hour[some]) & ~np.isnan(known.recent[some])
    enough = (same.sum(axis=1) >= FEWEST) & (hours.days_of(known.began[some], same) >= DAYS)
    some, same = some[enough], same[enough]
    if not len(some):
        return made
    costs = costs.of(some)
    recent = np.where(same, known.recent[some], np.nan)
    # A call that found no replica ended later by its cold start, and the next one comes so much sooner after its end.
    stretch = windows(recent, costs, costs.cold)
    before = worth(recent, made.keep[some], made.ready[some], made.until[some], costs)
    better = np.flatnonzero((stretch.gain > before + SURE * costs.penalty) & np.isfinite(stretch.ready))
    if not len(better):
        return made
    some, ready, until = some[better], stretch.ready[better], stretch.until[better]
    days = hours.days_off(known.week(some), hour[some], (ready + until) / 2)
    later = days * hours.DAY_HOURS * hours.HOUR
    made.keep[some] = 0.0
    made.ready[some], made.until[some] = ready + later, until + later
    made.gain[some] = stretch.gain[better]
    by_hour = np.zeros(len(made.keep), bool)
    by_hour[some] = True
    return replace(made, by_hour=by_hour)


def _at(values: Floats, index: Ints) -> Floats:
    found: Floats = np.take_along_axis(values, index[..., None], axis=-1)[..., 0]
    return found
