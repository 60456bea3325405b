"""Averages and maxima over a sliding window of time, in buckets. The caller gives the time; nothing here reads a clock.

A bucket holds the sum of what was recorded in its second; a window of n buckets is a ring. What users see of it:

* Seconds in which nothing is recorded count as zero once something is recorded after them. While nothing has been
  recorded since, a reader leaves them out of sum and divisor, so that a stalled source of numbers does not look like
  idleness.
* After a gap as long as the window everything begins anew: the divisor grows from one bucket again.
* A late value goes into its own second, if that is still inside the window; else it is ignored.
* With no value in the window there is no average (``empty``), and no decision may be made from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

PRECISION = 6
"""Digits that a linear average is rounded to: adding and subtracting leaves dust, and the ceiling of 3.0000001 is 4."""
_COVERAGE = 0.9999
"""Share of all weight that the exponential average gives to the window; what lies before it is cut off."""
_LEAST_COEFFICIENT = 0.2
"""Below this the newest second would hardly count in a long window."""


class LinearAverage:
    """The mean of the last ``window`` seconds, every second counting the same."""

    def __init__(self, window: float, granularity: float = 1.0) -> None:
        self.window = window
        self.granularity = granularity
        self._buckets = [0.0] * max(1, math.ceil(window / granularity))
        self._total = 0.0
        self._first: int | None = None
        self._last: int | None = None

    def record(self, now: float, value: float) -> None:
        """Add a value to the bucket of ``now``."""
        at = self._index(now)
        count = len(self._buckets)
        if self._first is None or self._last is None:
            self._first = self._last = at
        elif at >= self._last + count:
            self._buckets = [0.0] * count
            self._total = 0.0
            self._first = self._last = at
        elif at > self._last:
            for between in range(self._last + 1, at + 1):
                self._total -= self._buckets[between % count]
                self._buckets[between % count] = 0.0
            self._last = at
        elif at <= self._last - count:
            return
        else:
            self._first = min(self._first, at)
        self._buckets[at % count] += value
        self._total += value

    def empty(self, now: float) -> bool:
        """Nothing was recorded within the window: there is no average."""
        return self._last is None or self._index(now) - self._last > len(self._buckets)

    def average(self, now: float) -> float:
        """The mean at ``now``; 0 where the window has run out of values."""
        if self._first is None or self._last is None:
            return 0.0
        count = len(self._buckets)
        idle = max(0, self._index(now) - self._last)
        if idle >= count:
            return 0.0
        total = self._total - sum(self._buckets[(self._last + step) % count] for step in range(1, idle + 1))
        return round(total / min(self._last - self._first + 1, count - idle), PRECISION)

    def resize(self, window: float) -> LinearAverage:
        """A window of another length with the values that still fit, oldest first."""
        other = type(self)(window, self.granularity)
        if self._first is not None and self._last is not None:
            count = len(self._buckets)
            for at in range(max(self._first, self._last - count + 1), self._last + 1):
                other.record(at * self.granularity, self._buckets[at % count])
        return other

    def _index(self, now: float) -> int:
        return math.floor(now / self.granularity)


def coefficient(buckets: int) -> float:
    """Weight of the newest bucket in an exponential average over so many."""
    share: float = 1 - (1 - _COVERAGE) ** (1 / buckets)
    return max(share, _LEAST_COEFFICIENT)


class WeightedAverage(LinearAverage):
    """The exponentially weighted mean of the last ``window`` seconds: what is recent counts most."""

    def average(self, now: float) -> float:
        if self._last is None or self.empty(now):
            return 0.0
        count = len(self._buckets)
        idle = max(0, self._index(now) - self._last)
        share = coefficient(count)
        weight, total = share * (1 - share) ** idle, 0.0
        for back in range(count - idle):
            total += self._buckets[(self._last - back) % count] * weight
            weight *= 1 - share
        return total


@dataclass(frozen=True)
class MaxWindow:
    """The largest of the values of the last ``length`` buckets; a value itself, so that it can be part of a state.

    Kept are only values that may still become the largest: each is greater than all that came after it.
    """

    length: int
    granularity: int = 2
    entries: tuple[tuple[int, int], ...] = ()
    """(bucket, value), oldest first."""

    @classmethod
    def over(cls, seconds: float, granularity: int = 2) -> MaxWindow:
        return cls(max(1, math.ceil(seconds / granularity)), granularity)

    def record(self, now: float, value: int) -> MaxWindow:
        at = math.floor(now) // self.granularity
        kept = [entry for entry in self.entries if entry[0] > at - self.length and entry[1] > value]
        return MaxWindow(self.length, self.granularity, (*kept, (at, value)))

    @property
    def current(self) -> int:
        """The largest value; 0 before the first."""
        return self.entries[0][1] if self.entries else 0
