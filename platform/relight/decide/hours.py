"""Hours of the week: which of the last idle times began at this time of day, and which hours nobody calls in.

What is called by people or by a calendar is called at the same time of the day, and on some days only. So the idle time
that begins at five in the afternoon is like the others that began then, whatever those that began in the morning were
(``alike``); and a stretch that would fall on a Saturday, where the same hour of other days has calls and that of
Saturdays has none, is for the next day that has some (``days_off``). And the hour that comes may have more calls than
this one (``growth``).

Hours are counted from Monday, 00:00 UTC; a time zone whose clocks change moves by an hour twice a year, which is why
neighbouring hours count as the same. Of a week that was not yet watched nothing is said.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Ints = NDArray[np.integer]
Bools = NDArray[np.bool_]

HOUR = 3600.0
DAY_HOURS = 24
WEEK = 7 * DAY_HOURS
UNKNOWN = 255
"""Stands for an hour that is not known."""
_THURSDAY = 3 * DAY_HOURS
"""The hour of the week with which 1970 began."""
NEAR = 1
"""Hours apart that are still the same time of day."""
FRESH = 0.35
"""Weight of the newest week in the calls of an hour: after two weeks the newest two are most of what is known."""
SILENT = 0.1
"""Calls of an hour of the week, as a share of what that hour has on all days, below which it has none."""
STEEPEST = 4.0
"""How many times the calls of one hour those of the next are taken for at most: a few calls make wild ratios."""
LEAST = 0.25
"""Calls that an hour of the day must have, as a mean of the days watched, for the lack of them to mean something."""


def hour_of(seconds: float) -> int:
    """The hour of the week of a moment, in seconds since 1970."""
    return int(seconds // HOUR + _THURSDAY) % WEEK


def watched(week: NDArray[np.float16], hour: int | slice, calls: Floats) -> None:
    """Put in what was called in an hour (or several) that is over, of all functions: ``[functions, WEEK]``."""
    before = week[:, hour].astype(np.float64)
    week[:, hour] = np.minimum(np.where(np.isnan(before), calls, before + FRESH * (calls - before)), 60000.0)


def merged_weeks(first: NDArray[np.float16], second: NDArray[np.float16]) -> NDArray[np.float16]:
    """The calls that two observers of one function saw, each its own part: they add up, hour by hour."""
    known = ~(np.isnan(first) & np.isnan(second))
    total = np.nan_to_num(first.astype(np.float64)) + np.nan_to_num(second.astype(np.float64))
    return np.where(known, np.minimum(total, 60000.0), np.nan).astype(np.float16)


def growth(week: NDArray[np.float16], last: int, coming: int) -> Floats:
    """Calls of the ``coming`` hour of the week over those of the ``last`` one in other weeks: ``[functions]``.

    1 where one of them was not watched or the last one had hardly a call, and never more than ``STEEPEST``, or less
    than its inverse.
    """
    before, after = week[:, last].astype(np.float64), week[:, coming].astype(np.float64)
    known = ~np.isnan(before) & ~np.isnan(after) & (before >= 1.0)
    ratio = np.divide(after, before, out=np.ones_like(before), where=known)
    found: Floats = np.clip(ratio, 1 / STEEPEST, STEEPEST)
    return found


def alike(began: NDArray[np.uint8], hours: Ints) -> Bools:
    """Which idle times ``[functions, N]`` began at the time of day of ``hours``, an hour more or less."""
    apart = (began.astype(np.int64) - hours[:, None]) % DAY_HOURS
    found: Bools = (np.minimum(apart, DAY_HOURS - apart) <= NEAR) & (began != UNKNOWN)
    return found


def days_of(began: NDArray[np.uint8], chosen: Bools) -> Ints:
    """On how many days of the week the ``chosen`` idle times began."""
    day = np.where(chosen, began // DAY_HOURS, 7)
    found: Ints = (day[..., None] == np.arange(7)).any(axis=1).sum(axis=-1)
    return found


def days_off(week: NDArray[np.float16], hours: Ints, seconds: Floats) -> Floats:
    """How many days later than ``seconds`` after ``hours`` a call must be expected, since it has no calls before.

    Zero where the hour that it falls in was not watched, or is called as others are, or hardly anybody calls at all.
    """
    at = (hours + np.floor(np.nan_to_num(seconds, posinf=0.0) / HOUR)).astype(np.int64) % WEEK
    rows = np.arange(len(week))[:, None]
    # A call may come a little before or after: an hour is as silent as the loudest of its neighbours.
    near = week[rows[..., None], (at[:, None, None] + DAY_HOURS * np.arange(7)[:, None] + (-1, 0, 1)) % WEEK]
    calls = near.astype(np.float64).max(axis=-1)
    known = ~np.isnan(calls)
    mean = np.where(known, calls, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    silent = known & (mean >= LEAST)[:, None] & (calls < SILENT * mean[:, None])
    found: Floats = np.argmin(silent, axis=1).astype(np.float64)
    return found
