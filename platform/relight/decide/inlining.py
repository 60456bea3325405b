"""Whether a model's runs are short enough to be made on the event loop's own thread.

A hand-over to another thread and back costs more than a small model. But while a run is made on the loop nothing else
happens there, no health path is answered: so only runs that are known to be short are, and one that was not short
after all closes the way for a while, each time for longer.
"""

from __future__ import annotations

ENTER = 0.0005
"""Seconds. Runs in a thread are quick up to this."""
LEAVE = 0.001
"""Seconds. A run that is expected to take longer goes to a thread; above ``ENTER``, so that none goes to and fro."""
CUT = 0.005
"""Seconds. One run on the loop that takes longer closes the way."""
PROBATION = 16
"""Quick runs in a thread, more or less in a row, before the first run on the loop."""
LONGEST_PROBATION = 2**16
HEALED = 10_000
"""Quick runs on the loop after which an earlier long one weighs half."""
SET_BACK = 4
"""Quick runs that one which is not takes back; one above ``CUT`` takes all."""


class Inlining:
    """The state of one model. Closed at first."""

    def __init__(self) -> None:
        self._open = False
        self._quick = 0
        self._probation = PROBATION

    def allows(self, expected: float | None) -> bool:
        """Whether a run that should take ``expected`` seconds may be made on the loop."""
        return self._open and expected is not None and expected <= LEAVE

    def in_thread(self, seconds: float) -> None:
        """A run in a thread took so long."""
        if self._open:
            return
        if seconds <= ENTER:
            self._quick += 1
        else:
            self._quick = max(0, self._quick - SET_BACK) if seconds <= CUT else 0
        if self._quick >= self._probation:
            self._open, self._quick = True, 0

    def on_loop(self, seconds: float) -> None:
        """A run on the loop took so long."""
        if seconds > CUT:
            self._open, self._quick = False, 0
            self._probation = min(self._probation * 2, LONGEST_PROBATION)
            return
        self._quick += 1
        if self._quick >= HEALED:
            self._quick = 0
            self._probation = max(PROBATION, self._probation // 2)
