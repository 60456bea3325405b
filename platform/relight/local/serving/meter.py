"""Time-weighted averages of a number that goes up and down."""

from __future__ import annotations


class Meter:
    """The area under a level, read and reset once per sample. Times are of one monotonic clock, in seconds."""

    __slots__ = ("_area", "_changed", "_started", "level")

    def __init__(self, now: float) -> None:
        self.level = 0
        self._area = 0.0
        self._started = now
        self._changed = now

    def change(self, delta: int, now: float) -> None:
        """The level moves by ``delta`` at ``now``."""
        self._area += self.level * (now - self._changed)
        self._changed = now
        self.level += delta

    def sample(self, now: float) -> float:
        """The average level since the last sample; the level itself where no time has passed."""
        self.change(0, now)
        elapsed = now - self._started
        average = self._area / elapsed if elapsed > 0 else float(self.level)
        self._area = 0.0
        self._started = now
        return average
