"""A user's own rules for the hours of a day: ``between 09:00 and 18:00 on mon-fri Europe/Berlin: min 2``.

They win over what was learned: while a rule holds, its min is what a function has at least, and ``max`` at most that
the policy asks for. A window that ends before it begins goes over midnight and belongs to the day it began on. Hours
are wall-clock hours of the zone, so that a day with a change of the clock has them as people do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from relight.base.errors import BadInput, Problem

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MOST = 1000
"""Replicas that a rule may ask for."""
_RULE = re.compile(
    r"between\s+(\d{1,2}):(\d\d)\s+and\s+(\d{1,2}):(\d\d)"
    r"(?:\s+on\s+([a-z]{3}(?:\s*[-,]\s*[a-z]{3})*))?(?:\s+([A-Za-z][\w+/-]*))?\s*:\s*(min|max)\s+(\d+)",
    re.IGNORECASE,
)
_EXPECTED = "expected such as 'between 09:00 and 18:00 on mon-fri Europe/Berlin: min 2'"


@dataclass(frozen=True)
class Rule:
    """One rule. Minutes of the day, ``end`` exclusive."""

    text: str
    begin: int
    end: int
    days: frozenset[int]
    """Monday is 0."""
    zone: tzinfo
    bound: str
    """``min`` or ``max``."""
    replicas: int

    def holds(self, now: float) -> bool:
        """``now``: seconds since 1970."""
        here = datetime.fromtimestamp(now, UTC).astimezone(self.zone)
        minute = here.hour * 60 + here.minute
        if self.begin < self.end:
            return self.begin <= minute < self.end and here.weekday() in self.days
        if minute >= self.begin:
            return here.weekday() in self.days
        return minute < self.end and (here - timedelta(days=1)).weekday() in self.days


@dataclass(frozen=True)
class Bounds:
    """What rules say now; None: nothing."""

    min: int | None = None
    max: int | None = None
    rule: str = ""
    """The rule that says so."""


def parse(text: str) -> tuple[Rule, ...]:
    """Rules, one a line or separated by semicolons. BadInput names every one that is wrong."""
    rules, problems = [], []
    for at, part in enumerate(piece.strip() for piece in re.split(r"[;\n]", text)):
        if not part:
            continue
        try:
            rules.append(_rule(part))
        except ValueError as error:
            problems.append(Problem(f"rules[{at}]", f"{error}, got {part!r}"))
    if problems:
        raise BadInput.of(problems)
    return tuple(rules)


def bounds(rules: tuple[Rule, ...], now: float) -> Bounds:
    """What holds now: of several, the largest min, and the smallest max that is not below it."""
    held = [rule for rule in rules if rule.holds(now)]
    least = max((rule for rule in held if rule.bound == "min"), key=lambda rule: rule.replicas, default=None)
    most = min((rule for rule in held if rule.bound == "max"), key=lambda rule: rule.replicas, default=None)
    if least and most and most.replicas < least.replicas:
        most = None
    said = least or most
    return Bounds(least.replicas if least else None, most.replicas if most else None, said.text if said else "")


def _rule(text: str) -> Rule:
    found = _RULE.fullmatch(text)
    if found is None:
        raise ValueError(_EXPECTED)
    begin_hour, begin_minute, end_hour, end_minute, days, zone, bound, replicas = found.groups()
    begin, end = _minutes(begin_hour, begin_minute), _minutes(end_hour, end_minute)
    if begin == end:
        raise ValueError("expected an end that is not the begin; a whole day is between 00:00 and 24:00")
    if int(replicas) > MOST:
        raise ValueError(f"expected at most {MOST} replicas")
    try:
        known: tzinfo = ZoneInfo(zone) if zone else UTC
    except (ZoneInfoNotFoundError, ValueError):
        raise ValueError(f"expected a time zone such as Europe/Berlin, got {zone!r}") from None
    return Rule(text, begin, end, _days(days), known, bound.lower(), int(replicas))


def _minutes(hour: str, minute: str) -> int:
    at = int(hour) * 60 + int(minute)
    if int(minute) > 59 or at > 24 * 60:
        raise ValueError(f"expected a time from 00:00 to 24:00, got {hour}:{minute}")
    return at


def _days(text: str | None) -> frozenset[int]:
    if text is None:
        return frozenset(range(7))
    days: set[int] = set()
    for part in text.lower().replace(" ", "").split(","):
        ends = part.split("-")
        if len(ends) > 2 or any(end not in DAYS for end in ends):
            raise ValueError(f"expected days such as mon-fri or sat,sun, got {text!r}")
        first, last = DAYS.index(ends[0]), DAYS.index(ends[-1])
        days |= {day % 7 for day in range(first, last + 1 + (7 if last < first else 0))}
    return frozenset(days)
