"""Traces from a seed, for users without one: the shapes that published traces of serverless platforms show.

Rates over many decades (45 % of functions are called hourly at most), timers with and without jitter, days and
weekends, bursts with long silence between them, a few fixed times of the day, and functions whose pattern changes
half-way through the scored part.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from relight.base.errors import BadInput
from relight.decide.idletimes import Floats, Ints
from relight.warm.traces import Trace

DAY = 1440
MOST = 255
"""Calls in a minute at most."""
_PERIODS = (5, 10, 15, 30, 60, 120, 240, 360, 720, 1440)
Draw = np.random.Generator
Counts = Ints
"""Calls per minute."""


def generate(kind: str, *, functions: int = 400, days: int = 14, seed: int = 0) -> Trace:
    """A trace of one of ``KINDS``; its first half is for learning. The same seed makes the same trace."""
    if kind not in KINDS:
        raise BadInput(f"there are no traces of kind {kind!r}; there are {', '.join(KINDS)}", param="kind")
    if functions < 1 or days < 1:
        raise BadInput("expected one function and one day at least")
    draw = np.random.default_rng([seed, KINDS.index(kind)])
    make = _MAKERS[kind]
    rows = [np.minimum(make(draw, days * DAY), MOST) for _ in range(functions)]
    function, minute, calls = [], [], []
    for at, counts in enumerate(rows):
        here = np.flatnonzero(counts)
        function.append(np.full(len(here), at))
        minute.append(here)
        calls.append(counts[here])
    return Trace(
        f"{kind}-{seed}",
        tuple(f"{kind}-{at}" for at in range(functions)),
        np.concatenate(function).astype(np.int64),
        np.concatenate(minute).astype(np.int64),
        np.concatenate(calls).astype(np.int64),
        np.round(np.exp(draw.normal(np.log(4.0), 1.2, functions)), 2),
        np.round(np.exp(draw.normal(np.log(0.3), 0.9, functions)), 3),
        draw.choice([0.125, 0.25, 0.5, 1.0], functions, p=[0.38, 0.3, 0.22, 0.1]),
        days * DAY,
        days * DAY // 2,
    )


def _rate(draw: Draw) -> float:
    """Calls a minute: 45 % of functions have one an hour or fewer, few have more than ten a minute."""
    return float(10 ** draw.normal(-1.65, 1.15))


def _poisson(draw: Draw, rate: Floats) -> Counts:
    return draw.poisson(np.minimum(rate, 200.0)).astype(np.int64)


def _steady(draw: Draw, minutes: int) -> Counts:
    return _poisson(draw, np.full(minutes, _rate(draw)))


def _timer(draw: Draw, minutes: int) -> Counts:
    period = int(draw.choice(_PERIODS))
    spread = float(draw.choice([0.0, 0.01, 0.1])) * period
    at = np.arange(draw.integers(period), minutes, period)
    moved = np.round(at + draw.normal(0.0, 1.0, len(at)) * spread).astype(np.int64)
    return np.bincount(np.clip(moved, 0, minutes - 1), minlength=minutes)


def _diurnal(draw: Draw, minutes: int) -> Counts:
    minute = np.arange(minutes)
    height = np.exp(draw.uniform(1.0, 4.0) * (np.cos(2 * np.pi * (minute / DAY - draw.random())) - 1))
    weekend = np.where(minute // DAY % 7 >= 5, draw.choice([0.1, 0.3, 1.0]), 1.0)
    return _poisson(draw, max(_rate(draw), 0.005) * 4 * height * weekend)


def _calendar(draw: Draw, minutes: int) -> Counts:
    """A few fixed times of the day, on every day or on workdays, give or take some minutes."""
    times = draw.choice(DAY // 10, draw.integers(2, 6), replace=False) * 10
    days = np.arange(-(-minutes // DAY))
    if draw.random() < 0.6:
        days = days[days % 7 < 5]
    moved = draw.normal(0.0, draw.choice([0.0, 1.0, 3.0]), (len(days), len(times)))
    at = days[:, None] * DAY + times + np.round(moved)
    return np.bincount(np.clip(at.ravel(), 0, minutes - 1).astype(np.int64), minlength=minutes)


def _burst(draw: Draw, minutes: int) -> Counts:
    rate = np.zeros(minutes)
    quiet, length = 10 ** draw.uniform(2.2, 3.6), 10 ** draw.uniform(0.5, 2.0)
    inside = 10 ** draw.uniform(-0.8, 0.6)
    at = draw.exponential(quiet)
    while at < minutes:
        end = at + max(2.0, draw.exponential(length))
        rate[int(at) : int(end)] = inside
        at = end + draw.exponential(quiet)
    return _poisson(draw, rate)


def _mixed(draw: Draw, minutes: int) -> Counts:
    return (_steady, _timer, _diurnal, _burst)[draw.integers(4)](draw, minutes)


def _drift(draw: Draw, minutes: int) -> Counts:
    change = int(minutes * draw.uniform(0.5, 0.8))
    return np.concatenate((_mixed(draw, minutes)[:change], _mixed(draw, minutes)[change:]))


_MAKERS: dict[str, Callable[[Draw, int], Counts]] = {
    "timer": _timer,
    "diurnal": _diurnal,
    "burst": _burst,
    "drift": _drift,
    "mixed": _mixed,
    "calendar": _calendar,
}
KINDS = tuple(_MAKERS)
