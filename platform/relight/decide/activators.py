"""Sizes around the activator: how many of them, how much each lets through, how many replicas to ask for their load."""

from __future__ import annotations

import math

MIN_ACTIVATORS = 2
BREAKER_QUEUE_DEPTH = 10_000
"""Requests of one revision that an activator holds; the next is refused."""
_POPULATION = 1.96**2 * 100 / 5**2
"""Replicas to sample out of infinitely many: 95 % confidence, a variance of 100, a margin of 5."""


def num_activators(ready: int, total: float, burst_capacity: float, activator_capacity: float) -> int:
    """How many activators a revision's traffic is spread over."""
    if burst_capacity == 0:
        return MIN_ACTIVATORS
    load = ready * total + max(burst_capacity, 0)
    return max(MIN_ACTIVATORS, math.ceil(load / activator_capacity))


def assigned(pods: int, activator: int, activators: int) -> int:
    """How many of the pods an activator speaks to alone: they are dealt round; with fewer pods than hands, one each."""
    if pods == 0:
        return 0
    return max(1, len(range(activator, pods, activators)))


def throttle_capacity(
    container_concurrency: int, *, backends: int = 0, assigned: int = 0, activators: int = 1
) -> float:
    """Requests at once that an activator lets through: 0 where there is no backend, ``inf`` without a limit.

    ``assigned``: pods that this activator speaks to directly; else ``backends`` are shared by all ``activators``.
    """
    if assigned == 0 and backends == 0:
        return 0
    if container_concurrency == 0:
        return math.inf
    if assigned > 0:
        return container_concurrency * assigned
    return max(1, container_concurrency * backends // max(1, activators))


def sample_size(pods: int) -> int:
    """How many of the pods to ask for their load so that the mean is near enough; the answer is scaled up to all."""
    if pods <= 3:
        return pods
    return math.ceil(pods * _POPULATION / (pods + _POPULATION - 1))
