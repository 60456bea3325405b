"""What processes use, as the kernel counts it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float | None:
    """CPU time of a process and of the children that it has waited for; None: it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return sum(map(int, fields[11:15])) / _TICK


def resident_bytes(pid: int) -> int | None:
    """Memory of a process that is not elsewhere, pages that it shares included; None: it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


class CpuMeter:
    """Cores that processes use on average, from one look to the next."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[float, float]] = {}

    def cores(self, pids: Iterable[int], now: float) -> list[float]:
        """Per process; those that are seen for the first time, or are gone, are left out."""
        found, seen = [], {}
        for pid in pids:
            used = cpu_seconds(pid)
            if used is None:
                continue
            seen[pid] = (used, now)
            if pid in self._before and now > self._before[pid][1]:
                then, at = self._before[pid]
                found.append((used - then) / (now - at))
        self._before = seen
        return found
