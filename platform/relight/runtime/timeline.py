"""The phases of one start: consecutive, so that they add up to the whole."""

from __future__ import annotations

import time
from collections.abc import Mapping


class Timeline:
    """Marks on the machine-wide monotonic clock. ``begin`` may lie before this process: when its start was decided."""

    def __init__(self, begin: float | None = None) -> None:
        self.phases: dict[str, float] = {}
        self.current = "start"
        self._last = time.monotonic() if begin is None else begin

    def enter(self, phase: str) -> None:
        """Name the phase that runs now, for whoever has to say where a start failed."""
        self.current = phase

    def mark(self, phase: str) -> None:
        """The phase ends now; the next one begins at the same instant."""
        now = time.monotonic()
        self.phases[phase] = self.phases.get(phase, 0.0) + now - self._last
        self._last = now

    def part(self, phase: str, seconds: Mapping[str, float]) -> None:
        """Seconds of a phase that has ended were those of others; the sum stays."""
        for other, spent in seconds.items():
            spent = min(spent, self.phases[phase])
            self.phases[phase] -= spent
            self.phases[other] = self.phases.get(other, 0.0) + spent
