"""Admission: which replica takes a request, and whether one that finds no free replica may wait.

The choice among replicas is Knative's: with no concurrency limit the less loaded of two drawn at random; with a limit
of 1 to 3 the first with a free slot (so that few replicas are busy and the others can go); with a larger one in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relight.base.errors import Overloaded

FIRST_AVAILABLE_UP_TO = 3
"""Largest concurrency limit for which replicas are filled in order (``pkg/activator/net/throttler.go``)."""


@dataclass(frozen=True)
class HoldLimits:
    """How much may wait for a replica of one revision."""

    max_requests: int = 10_000
    """Requests held at once (Knative's activator holds as many)."""
    max_bytes: int = 256 * 2**20
    """Bytes of held requests, heads and what was read of their bodies; bodies over 64 KiB wait in the client."""
    max_seconds: float = 0.0
    """How long one request is held before it is answered 503 with Retry-After; 0: as long as its own timeouts allow."""
    retry_after: float = 1.0
    """What a refused caller is told to wait, in seconds."""


def refuse(held: int, held_bytes: int, nbytes: int, limits: HoldLimits) -> Overloaded | None:
    """Why one more request of ``nbytes`` may not be held; None where it may."""
    if held >= limits.max_requests:
        return Overloaded(
            f"{held} requests already wait for a free replica, the limit is {limits.max_requests}",
            retry_after=limits.retry_after,
        )
    if held_bytes + nbytes > limits.max_bytes:
        return Overloaded(
            f"requests that wait for a free replica hold {held_bytes} bytes, {nbytes} more would pass the limit of "
            f"{limits.max_bytes}",
            retry_after=limits.retry_after,
        )
    return None


def choose(in_flight: Sequence[int], concurrency: int, turn: int, random01: float) -> int | None:
    """Index of the replica that takes the next request; None where none has a free slot.

    ``in_flight`` is the number of requests at each replica, ``concurrency`` the limit per replica (0: none), ``turn``
    the index after the last choice, ``random01`` a number in [0, 1).
    """
    count = len(in_flight)
    if count == 0:
        return None
    if concurrency == 0:
        return _less_loaded_of_two(in_flight, random01)
    if concurrency <= FIRST_AVAILABLE_UP_TO:
        for index, load in enumerate(in_flight):
            if load < concurrency:
                return index
        return None
    for step in range(count):
        index = (turn + step) % count
        if in_flight[index] < concurrency:
            return index
    return None


def _less_loaded_of_two(in_flight: Sequence[int], random01: float) -> int:
    """One number draws an ordered pair of different replicas; on a tie the first of the pair is taken."""
    count = len(in_flight)
    if count == 1:
        return 0
    first, second = divmod(int(random01 * count * (count - 1)), count - 1)
    if second >= first:
        second += 1
    return second if in_flight[second] < in_flight[first] else first
