"""How many replicas a revision should have by what they use: ``class: hpa``, which is Kubernetes' own autoscaler.

Every fifteen seconds the average over the replicas is divided by the target: the percentage of the CPU that a replica
requests, or its memory in MiB; by that factor the number of replicas grows or shrinks, unless it is within a tenth of
one. It grows at most by four or to twice as many per fifteen seconds, and shrinks only to the most that was wanted in
the last five minutes. It never goes to zero. Requests at once and per second work as targets too.

The rules are those of ``autoscaling/v2`` with the behaviour that a HorizontalPodAutoscaler has where it names none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from relight.decide.scaling import RevisionScaling

PERIOD = 15.0
"""Seconds between two decisions."""
TOLERANCE = 0.1
"""No change while the average is within this much of the target, relative to it."""
SETTLED = 300.0
"""Seconds for which the most that was wanted is kept."""
GROWS_BY = 4
GROWS_TO = 2.0
"""Replicas more, or so many times as many, per period: whichever is more."""


@dataclass(frozen=True)
class Wishes:
    """What was wanted lately, and what was added lately: (seconds, replicas), oldest first."""

    wanted: tuple[tuple[float, int], ...] = ()
    added: tuple[tuple[float, int], ...] = ()


def decide(
    spec: RevisionScaling, wishes: Wishes, replicas: int, average: float | None, now: float
) -> tuple[int, Wishes]:
    """Replicas wanted, and the state for the next decision.

    ``average``: of the metric over the ready replicas, in the target's unit; None: nobody knows, and nothing changes.
    """
    low, high = max(1, spec.min_scale), spec.max_scale or math.inf
    ratio = 1.0 if average is None else average / spec.target
    proposed = replicas if abs(ratio - 1.0) <= TOLERANCE else math.ceil(round(replicas * ratio, 6))
    proposed = int(max(low, min(high, proposed)))
    recent = (*((at, count) for at, count in wishes.wanted if now - at <= SETTLED), (now, proposed))
    added = tuple((at, count) for at, count in wishes.added if now - at < PERIOD)
    wanted = proposed
    if proposed < replicas:
        wanted = min(replicas, max(count for _, count in recent))
    elif proposed > replicas:
        start = replicas - sum(count for _, count in added)
        wanted = min(proposed, max(start + GROWS_BY, math.ceil(start * GROWS_TO)))
        wanted = max(wanted, replicas)
        added = (*added, (now, wanted - replicas)) if wanted > replicas else added
    wanted = int(max(low, min(high, wanted)))
    return wanted, Wishes(recent, added)
