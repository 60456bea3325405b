"""When a schedule ticks, and which of the ticks that are due are sent.

Schedules are cron's five fields, or six with the seconds in front, in a time zone. On the day that an hour is skipped,
a job of that hour ticks right after it; on the day that an hour comes twice, it ticks once (Debian's cron; the
library's rule). Time is an argument: seconds since 1970.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from relight.base.errors import BadInput, Problem

CatchUp = Literal["none", "latest", "all"]
"""What is done about ticks that were missed while nobody was there: nothing, the last of them, or all (bounded)."""
CATCH_UPS: tuple[CatchUp, ...] = ("none", "latest", "all")

LATE = 10.0
"""Seconds that a tick may be late and still not count as missed: a busy machine, a restart."""
MOST = 100
"""Ticks that are made up for at most; those before are lost, and told."""


@dataclass(frozen=True)
class Due:
    """What is to be sent now, oldest first, and how many were missed for good."""

    ticks: tuple[float, ...]
    lost: int = 0


@dataclass(frozen=True)
class Schedule:
    """A checked schedule."""

    text: str
    """The cron expression, in upper case."""
    zone: tzinfo = UTC
    offset: int = 0
    """Seconds after each time of ``text``. So ``15 30 2 * * *`` ticks by the rule for daily jobs, which the library has
    for five fields only."""

    @classmethod
    def of(cls, text: str, timezone: str | None = None) -> Schedule:
        """BadInput names ``spec.schedule`` or ``spec.timezone``."""
        problems: list[Problem] = []
        zone: tzinfo = UTC
        if timezone:
            try:
                zone = ZoneInfo(timezone)
            except (ZoneInfoNotFoundError, ValueError, OSError):
                problems.append(Problem("spec.timezone", f"no time zone such as Europe/Berlin: {timezone!r}"[:200]))
        fields = text.upper().split()
        offset = 0
        if len(fields) == 6 and fields[0].isascii() and fields[0].isdecimal() and int(fields[0]) < 60:
            offset = int(fields.pop(0))
        expression = " ".join(fields)
        try:
            if not 5 <= len(text.split()) <= 6:
                problems.append(Problem("spec.schedule", f"5 or 6 fields were expected: {text!r}"[:200]))
            else:
                next(CronSim(expression, datetime(2024, 1, 1, tzinfo=UTC)))
        except CronSimError as error:
            problems.append(Problem("spec.schedule", f"{text!r} is no cron schedule: {error}"[:200]))
        except StopIteration:
            problems.append(Problem("spec.schedule", f"{text!r} never comes to pass"[:200]))
        if problems:
            raise BadInput.of(problems)
        return cls(expression, zone, offset)

    def after(self, moment: float) -> float | None:
        """The first tick after a moment; None where there is none any more."""
        try:
            return next(CronSim(self.text, self._at(moment - self.offset))).timestamp() + self.offset
        except StopIteration:
            return None

    def between(self, last: float, now: float, most: int) -> list[float]:
        """The ticks after ``last`` up to ``now``, oldest first; where there are more, the ``most`` latest."""
        found: list[float] = []
        try:
            # Backwards, so that a month of missed seconds costs no more than what is asked for.
            for moment in CronSim(self.text, self._at(now - self.offset + 1), reverse=True):
                tick = moment.timestamp() + self.offset
                if tick <= last or len(found) >= most:
                    break
                found.append(tick)
        except StopIteration:
            pass
        return found[::-1]

    def _at(self, moment: float) -> datetime:
        return datetime.fromtimestamp(math.floor(moment), self.zone)


def due(schedule: Schedule, last: float, now: float, catch_up: CatchUp) -> Due:
    """Which ticks after ``last`` are to be sent at ``now``. A clock that went back sends nothing twice."""
    ticks = schedule.between(last, now, MOST + 1)
    on_time = [tick for tick in ticks if now - tick <= LATE]
    missed = ticks[: len(ticks) - len(on_time)]
    if catch_up == "none":
        return Due(tuple(on_time), len(missed))
    if catch_up == "latest":
        kept = on_time or missed[-1:]
        return Due(tuple(kept), len(ticks) - len(kept))
    kept = ticks[-MOST:]
    return Due(tuple(kept), len(ticks) - len(kept))
