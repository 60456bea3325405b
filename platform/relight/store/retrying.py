"""Trying again after faults that pass: how often, and how long to wait in between."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Backoff:
    """Waits that double, up to a longest one, each drawn at random from its upper half.

    Many processes that lost the same server at the same moment do not come back at the same moment.
    """

    tries: int = 6
    """In all, the first one included. With the waits below: about 10 s until a fault counts as lasting."""
    first: float = 0.2
    """Seconds."""
    longest: float = 5.0
    """Seconds."""
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)

    def wait(self, failures: int) -> bool:
        """Wait after so many failures in a row; False, at once, if that were too many tries."""
        if failures >= self.tries:
            return False
        span = min(self.first * 2.0 ** (failures - 1), self.longest)
        self.sleep(span * (0.5 + random.random() / 2))
        return True
