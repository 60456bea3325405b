"""Policies for the simulator, by name: what a replica does after each entry of a trace.

Each sees, at an entry, only what came before it. What is learned is turned into plans once an hour of the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from relight.base.errors import BadInput
from relight.base.units import parse_duration
from relight.decide import hybrid, keepalive
from relight.decide.hours import HOUR, WEEK, watched
from relight.decide.idletimes import CLASSES, SPAN, Floats, IdleTimes, Ints, Known, pace_of
from relight.decide.keepalive import Costs, Prices
from relight.warm.lines import Plan
from relight.warm.simulating import Entries, Outcome, oracle, simulate
from relight.warm.traces import MINUTE

EPOCH = 60
"""Minutes of the trace between two rounds of learning."""
BATCH = 4096
"""Plans that are made at once: enough for arrays to pay, few enough for a processor's cache."""
KNATIVE = 65.0
"""Seconds from the last request to the end of the replica with Knative's defaults: a stable window of 60 s, a tick, and
the fast path to zero that goes with the default target-burst-capacity."""

Policy = Callable[[Entries, Prices], Outcome]
NAMES = "fixed:SECONDS (or a duration: fixed:10m), knative, hybrid, relight, always-on, oracle"


def policy(name: str) -> Policy:
    """The policy of a name; BadInput: there is none."""
    kind, _, value = name.partition(":")
    if kind == "fixed" and value:
        try:
            seconds = float(value) if value.replace(".", "", 1).isdigit() else parse_duration(value)
        except ValueError as error:
            raise BadInput(f"{name}: {error}", param="policy") from None
        return partial(_fixed, seconds)
    known: dict[str, Policy] = {
        "knative": partial(_fixed, KNATIVE),
        "always-on": partial(_fixed, np.inf),
        "hybrid": lambda entries, prices: simulate(entries, published(entries)),
        "relight": lambda entries, prices: simulate(entries, ours(entries, prices)),
        "oracle": lambda entries, prices: oracle(entries),
    }
    if name not in known:
        raise BadInput(f"there is no policy {name!r}; there are {NAMES}", param="policy")
    return known[name]


def _fixed(seconds: float, entries: Entries, prices: Prices) -> Outcome:
    return simulate(entries, Plan(seconds))


def ours(entries: Entries, prices: Prices, *, epoch: float = EPOCH, floor: float = 0.0, seasons: bool = True) -> Plan:
    """relight's own: ``decide.keepalive``, with what it learns of each function and of all.

    ``epoch``: minutes between two rounds of learning. ``floor``: seconds that a platform keeps replicas anyway.
    ``seasons``: whether the hour of the week counts; the trace begins on a Monday at 00:00.
    """
    trace = entries.trace
    costs = Costs(trace.cold, trace.share, prices)
    pace = _pace(entries)
    samples = _samples(entries, pace, epoch)
    times = IdleTimes(trace.size)
    known = np.zeros(trace.size, bool)
    made = _Decisions(costs, seasons)
    which = np.array(entries.function)
    over, calls = 0, np.zeros(trace.size)
    for number, rows in _epochs((trace.minute // epoch).astype(np.int64)):
        function = entries.function[rows]
        now = int(trace.minute[rows[0]] // 60)
        if seasons and now > over:
            watched(times.week, over % WEEK, calls)
            for silent in range(over + 1, now):
                watched(times.week, silent % WEEK, np.zeros(trace.size))
            over, calls = now, np.zeros(trace.size)
        calls += np.bincount(function, minlength=trace.size)
        some = rows[known[function]]
        if len(some):
            pairs, place = np.unique(entries.function[some] * CLASSES + pace[some], return_inverse=True)
            which[some] = made.decide(times, pairs // CLASSES, pairs % CLASSES, now % WEEK) + place
        known[times.learn(*samples.of(number))] = True
    keep, ready, until = (part[which] for part in made.plans())
    return Plan(np.maximum(keep, floor), ready, until)


class _Decisions:
    """Plans of functions at many moments, made many at once; those that hold before anything is known come first."""

    def __init__(self, costs: Costs, seasons: bool) -> None:
        self._costs = costs
        self._seasons = seasons
        self._made = [keepalive.prior(costs)]
        self._waiting: list[tuple[Known, Ints, int]] = []
        self._held = 0
        self._number = len(costs.cold)

    def decide(self, times: IdleTimes, rows: Ints, pace: Ints, hour: int) -> int:
        """Have plans made of what is known now; the number of the first of them."""
        self._waiting.append((times.known(rows, pace), rows, hour))
        self._held += len(rows)
        if self._held >= BATCH:
            self._flush()
        self._number += len(rows)
        return self._number - len(rows)

    def _flush(self) -> None:
        if not self._waiting:
            return
        parts, rows, hours = zip(*self._waiting, strict=True)
        began = np.repeat(hours, [len(one) for one in rows]) if self._seasons else None
        self._made.append(keepalive.decide(Known.joined(parts), self._costs.of(np.concatenate(rows)), began))
        self._waiting, self._held = [], 0

    def plans(self) -> tuple[Floats, Floats, Floats]:
        """Keep, ready and until of all, by number."""
        self._flush()
        columns = ([getattr(one, name) for one in self._made] for name in ("keep", "ready", "until"))
        keep, ready, until = (np.concatenate(column) for column in columns)
        return keep, ready, until


def published(entries: Entries) -> Plan:
    """The hybrid histogram policy as it was published: ``decide.hybrid``."""
    trace = entries.trace
    counts = np.zeros((trace.size, hybrid.RANGE + 1))
    means = np.zeros(trace.size)
    current = list(hybrid.decide(counts, means))
    chosen = [np.empty(len(entries)) for _ in current]
    for _, rows in _epochs(trace.minute // EPOCH):
        function = entries.function[rows]
        for made, now in zip(chosen, current, strict=True):
            made[rows] = now[function]
        kept = rows[entries.idle[rows] > 0]
        if not len(kept):
            continue
        names, idle = entries.function[kept], entries.idle[kept]
        active = np.unique(names)
        np.add.at(counts, (names, np.minimum(idle // MINUTE, hybrid.RANGE).astype(np.int64)), 1)
        # One idle time after the other enters the forecast; in an hour there is hardly more than one that counts.
        for name, seconds in zip(names.tolist(), idle.tolist(), strict=True):
            means[name] += (seconds - means[name]) * (hybrid.SMOOTHING if means[name] else 1.0)
        for now, new in zip(current, hybrid.decide(counts[active], means[active]), strict=True):
            now[active] = new
    return Plan(*chosen)


def _epochs(epoch: Ints) -> Iterator[tuple[int, Ints]]:
    """The number of each epoch in turn and its rows, in the order of the trace within it."""
    order = _in_order(epoch)
    edges = np.flatnonzero(np.diff(epoch[order])) + 1
    for rows in np.split(order, edges):
        yield int(epoch[rows[0]]), rows


def _in_order(epoch: Ints) -> Ints:
    """Rows by epoch, those of one epoch as they are."""
    # Numbers of 16 bits are sorted by radix, ten times as quickly.
    few = len(epoch) and epoch.max() < 2**15
    return np.argsort(epoch.astype(np.int16) if few else epoch, kind="stable")


def _pace(entries: Entries) -> Ints:
    """The class of pace of each entry, from the idle times that ended with it or just before."""
    idle = np.maximum(np.nan_to_num(entries.idle), 0.0)
    total = np.cumsum(idle)
    at = np.arange(len(idle))
    begin = np.maximum.accumulate(np.where(entries.first, at, 0))
    seen = np.minimum(at - begin, SPAN)
    mean = (total - total[at - seen]) / np.maximum(seen, 1)
    return pace_of(np.where(seen > 0, mean, np.nan))


@dataclass(frozen=True)
class _Samples:
    """What a trace teaches, in the order of its epochs: the arguments of ``IdleTimes.learn``."""

    epoch: Ints
    columns: tuple[np.ndarray, ...]

    def of(self, epoch: int) -> tuple[np.ndarray, ...]:
        begin, end = np.searchsorted(self.epoch, (epoch, epoch + 1))
        return tuple(column[begin:end] for column in self.columns)


def _samples(entries: Entries, pace: Ints, epoch: float) -> _Samples:
    """Idle times between entries, at the pace of the one before, and those inside of entries."""
    between, inside = np.flatnonzero(entries.idle > 0), np.flatnonzero(entries.inner > 0)
    rows = np.concatenate((between, inside))
    begun = np.concatenate((between - 1, inside))
    kept = np.arange(len(rows)) < len(between)
    when = (entries.trace.minute[rows] // epoch).astype(np.int64)
    order = _in_order(when)
    rows, begun, kept = rows[order], begun[order], kept[order]
    seconds = np.where(kept, entries.idle[rows], entries.inner[rows])
    weight = np.where(kept, 1.0, entries.calls[rows] - 1.0)
    hour = (entries.end[begun] // HOUR).astype(np.int64) % WEEK
    return _Samples(when[order], (entries.function[rows], pace[begun], seconds, weight, kept, hour))
