"""Policies for the simulator, by name: what a replica does after each entry of a trace.

Each sees, at an entry, only what came before it. What is learned is turned into plans once an hour of the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from relight.base.errors import BadInput
from relight.base.units import parse_duration
from relight.decide import hybrid, keepalive
from relight.decide.hours import HOUR, WEEK, watched
from relight.decide.idletimes import SPAN, Floats, IdleTimes, Ints, pace_of
from relight.decide.keepalive import Costs, Prices
from relight.warm.lines import Plan
from relight.warm.simulating import Entries, Outcome, oracle, simulate
from relight.warm.traces import MINUTE

EPOCH = 60
"""Minutes of the trace between two rounds of learning."""
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
    rounds = (trace.minute // epoch).astype(np.int64)
    plans = keepalive.prior(costs)
    current = [plans.keep.copy(), plans.ready.copy(), plans.until.copy()]
    chosen = [np.empty(len(entries)) for _ in current]
    times = IdleTimes(trace.size)
    known = np.zeros(trace.size, bool)
    hour = (entries.end // HOUR).astype(np.int64) % WEEK
    over, calls = 0, np.zeros(trace.size)
    for rows in _epochs(rounds):
        function = entries.function[rows]
        now = int(trace.minute[rows[0]] // 60)
        if seasons and now > over:
            watched(times.week, over % WEEK, calls)
            for silent in range(over + 1, now):
                watched(times.week, silent % WEEK, np.zeros(trace.size))
            over, calls = now, np.zeros(trace.size)
        calls += np.bincount(function, minlength=trace.size)
        here = np.unique(function[known[function]])
        if len(here):
            began = np.full(len(here), now % WEEK) if seasons else None
            found = keepalive.decide(times, here, costs, began)
            for at, new in zip(current, (found.keep, found.ready, found.until), strict=True):
                at[here] = new
        for made, at in zip(chosen, current, strict=True):
            made[rows] = at[function, pace[rows]]
        known[times.learn(*_samples(entries, rows, pace, hour))] = True
    chosen[0] = np.maximum(chosen[0], floor)
    return Plan(*chosen)


def published(entries: Entries) -> Plan:
    """The hybrid histogram policy as it was published: ``decide.hybrid``."""
    trace = entries.trace
    counts = np.zeros((trace.size, hybrid.RANGE + 1))
    means = np.zeros(trace.size)
    current = list(hybrid.decide(counts, means))
    chosen = [np.empty(len(entries)) for _ in current]
    for rows in _epochs(trace.minute // EPOCH):
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


def _epochs(epoch: Ints) -> Iterator[Ints]:
    """Rows of each epoch in turn, in the order of the trace within it."""
    order = np.argsort(epoch, kind="stable")
    edges = np.flatnonzero(np.diff(epoch[order])) + 1
    yield from np.split(order, edges)


def _pace(entries: Entries) -> Ints:
    """The class of pace of each entry, from the idle times that ended with it or just before."""
    idle = np.maximum(np.nan_to_num(entries.idle), 0.0)
    total = np.cumsum(idle)
    at = np.arange(len(idle))
    begin = np.maximum.accumulate(np.where(entries.first, at, 0))
    seen = np.minimum(at - begin, SPAN)
    mean = (total - total[at - seen]) / np.maximum(seen, 1)
    return pace_of(np.where(seen > 0, mean, np.nan))


def _samples(
    entries: Entries, rows: Ints, pace: Ints, hour: Ints
) -> tuple[Ints, Ints, Floats, Floats, np.ndarray, Ints]:
    """What an epoch teaches: idle times between entries, at the pace of the one before, and those inside of entries."""
    between = rows[entries.idle[rows] > 0]
    inside = rows[entries.inner[rows] > 0]
    return (
        np.concatenate((entries.function[between], entries.function[inside])),
        np.concatenate((pace[between - 1], pace[inside])),
        np.concatenate((entries.idle[between], entries.inner[inside])),
        np.concatenate((np.ones(len(between)), entries.calls[inside] - 1.0)),
        np.arange(len(between) + len(inside)) < len(between),
        np.concatenate((hour[between - 1], hour[inside])),
    )
