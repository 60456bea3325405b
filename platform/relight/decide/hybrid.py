"""The hybrid histogram policy of *Serverless in the Wild* (Shahrad et al., ATC'20, section 4.2), as it was published.

It is here to be compared with. Idle times per function in bins of a minute, up to four hours; longer ones are out of
bounds. Few samples, or a histogram without a shape (coefficient of variation of the bin counts below 2): keep for the
whole range. Mostly out of bounds: forecast the idle time, be warm from 0.85 to 1.15 of it. Else: let go, be warm from
0.9 of the 5th percentile (rounded down) to 1.1 of the 99th (rounded up); a 5th percentile of 0 keeps the replica.

The paper forecasts by ARIMA and gives no number for few samples and for mostly: a smoothed mean, 10 and one half stand
here, as in the re-implementations. It gets more than it would: a pre-warmed replica is ready when its load begins.
"""

from __future__ import annotations

import numpy as np

from relight.decide.idletimes import Floats

RANGE = 240
"""Bins of a minute; one more holds what is out of bounds."""
SAMPLES = 10
VARIATION = 2.0
OUT_OF_BOUNDS = 0.5
SMOOTHING = 0.3
"""Weight of the newest idle time in the forecast."""
_MINUTE = 60.0


def decide(counts: Floats, forecast: Floats) -> tuple[Floats, Floats, Floats]:
    """(keep, ready, until) per function, in seconds, by ``[functions, RANGE + 1]`` counts and forecast idle times."""
    inside, outside = counts[:, :RANGE], counts[:, RANGE]
    number = inside.sum(axis=1) + outside
    mean = inside.mean(axis=1)
    varied = inside.std(axis=1) / np.where(mean > 0, mean, 1.0) >= VARIATION
    far = (number >= SAMPLES) & (outside > OUT_OF_BOUNDS * number)
    shaped = (number >= SAMPLES) & varied & ~far
    share = np.cumsum(inside, axis=1) / np.maximum(inside.sum(axis=1), 1.0)[:, None]
    head = np.argmax(share >= 0.05, axis=1) * _MINUTE
    tail = (np.argmax(share >= 0.99, axis=1) + 1) * _MINUTE
    held = shaped & (head == 0)
    late = shaped & (head > 0)
    keep = np.where(late | far, 0.0, np.where(held, 1.1 * tail, RANGE * _MINUTE))
    ready = np.where(late, 0.9 * head, np.where(far, 0.85 * forecast, np.inf))
    until = np.where(late, 1.1 * tail, np.where(far, 1.15 * forecast, np.inf))
    return keep, ready, until
