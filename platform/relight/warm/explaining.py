"""A decision laid open: the idle times that it was made of, and the money on both sides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relight.base.units import format_duration
from relight.decide.idletimes import BINS, CLASSES, EDGES, PACES, WIDTHS, IdleTimes
from relight.decide.keepalive import Costs
from relight.warm.functions import Function
from relight.warm.settings import WarmSettings


@dataclass(frozen=True)
class Explanation:
    """See the module."""

    pace: str
    samples: float
    bars: tuple[tuple[float, float, float, bool], ...]
    """Begin and end of a stretch of idle time in seconds, its share of all, whether the plan has a replica up."""
    sides: tuple[tuple[str, float], ...]
    """What is said of an amount, and the amount."""


def explanation(function: Function, times: IdleTimes, settings: WarmSettings) -> Explanation:
    """Of the present plan, at the present pace."""
    costs = Costs(
        np.array([function.cold or settings.cold]), np.array([function.share or settings.cpu_share]), settings.prices
    )
    row = np.array([function.row])
    pace = int(times.pace(row)[0])
    counts = times.counts[function.row, pace].astype(np.float64)
    chances = times.chances(row, np.array([pace]))[0][0]
    up = _up(function, costs)
    hit = np.array([_warm(function, EDGES[at] + WIDTHS[at] / 2) for at in range(BINS)])
    caught = float((chances * hit).sum())
    idle = float((chances * up).sum())
    rate, penalty = float(costs.rate[0]), float(costs.penalty[0])
    shares = counts / max(counts.sum(), 1e-12)
    seen = np.flatnonzero(shares > 0.002)
    bars = (
        tuple(
            (float(EDGES[at]), float(EDGES[at + 1]), float(shares[at]), bool(hit[at]))
            for at in range(seen[0], seen[-1] + 1)
        )
        if len(seen)
        else ()
    )
    sides = (
        (f"a cold start of {float(costs.cold[0]):.1f} s costs", penalty),
        (f"{float(costs.break_even[0]):.0f} s of idling cost the same; a minute costs", 60 * rate),
        (f"with the plan {100 * caught:.0f} % of the calls find a replica: saved", caught * penalty),
        (f"and it idles {idle:.0f} s on average: spent", idle * rate),
        ("gained against letting go at once", caught * penalty - idle * rate),
    )
    return Explanation(_pace(pace), float(counts.sum()), bars, sides)


def _warm(function: Function, idle: float) -> bool:
    return bool(idle <= function.keep or function.ready <= idle <= function.until)


def _up(function: Function, costs: Costs) -> np.ndarray:
    """Seconds that a replica is up, for an idle time in each bin."""
    middle = EDGES[:-1] + WIDTHS / 2
    start = max(function.ready - float(costs.cold[0]), function.keep)
    found: np.ndarray = np.minimum(middle, function.keep) + np.maximum(np.minimum(middle, function.until) - start, 0.0)
    return found


def _pace(pace: int) -> str:
    """A class in words."""
    low = format_duration(float(PACES[pace - 1])) if pace else "0s"
    return f"over {low} between calls" if pace == CLASSES - 1 else f"{low} to {format_duration(float(PACES[pace]))}"
