"""Schedules as decisions: ticks in a time zone, the days on which the clock is changed, what is made up for."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from relight.base.errors import BadInput
from relight.decide.schedule import CATCH_UPS, LATE, MOST, CatchUp, Due, Schedule, due

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"


def at(text: str, zone: str = "UTC", fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def ticks(schedule: str, zone: str, start: str, count: int) -> list[str]:
    """The first ticks after a moment, as UTC."""
    plan, moment, found = Schedule.of(schedule, zone), at(start, zone), []
    for _ in range(count):
        tick = plan.after(moment)
        assert tick is not None
        found.append(datetime.fromtimestamp(tick, UTC).strftime("%d %H:%M:%S"))
        moment = tick
    return found


TICKS = [
    ("every minute", "* * * * *", "UTC", "2026-05-01T10:00:30", ["01 10:01:00", "01 10:02:00"]),
    ("every 20 seconds", "*/20 * * * * *", "UTC", "2026-05-01T10:00:30", ["01 10:00:40", "01 10:01:00"]),
    ("strictly after", "0 10 * * *", "UTC", "2026-05-01T10:00:00", ["02 10:00:00"]),
    ("names, any case", "0 9 * * mon", "UTC", "2026-05-01T10:00:00", ["04 09:00:00"]),
    ("a zone", "0 9 * * *", BERLIN, "2026-01-10T00:00:00", ["10 08:00:00"]),
    ("a zone in summer", "0 9 * * *", BERLIN, "2026-07-10T00:00:00", ["10 07:00:00"]),
    # 29 March 2026, Berlin: 02:00 to 03:00 does not exist.
    ("skipped hour: right after it", "30 2 * * *", BERLIN, "2026-03-28T12:00:00", ["29 01:00:00", "30 00:30:00"]),
    ("skipped hour, with seconds", "15 30 2 * * *", BERLIN, "2026-03-28T12:00:00", ["29 01:00:15", "30 00:30:15"]),
    ("skipped hour, every half", "*/30 * * * *", BERLIN, "2026-03-29T01:00:00", ["29 00:30:00", "29 01:00:00"]),
    # 25 October 2026, Berlin: 02:00 to 03:00 comes twice.
    ("doubled hour: once", "30 2 * * *", BERLIN, "2026-10-24T12:00:00", ["25 00:30:00", "26 01:30:00"]),
    ("doubled hour, with seconds", "15 30 2 * * *", BERLIN, "2026-10-24T12:00:00", ["25 00:30:15", "26 01:30:15"]),
    (
        "doubled hour, hourly: each",
        "0 * * * *",
        BERLIN,
        "2026-10-25T01:30:00",
        ["25 00:00:00", "25 01:00:00", "25 02:00:00"],
    ),
    ("the other side of the ocean", "30 1 * * *", NEW_YORK, "2026-10-31T12:00:00", ["01 05:30:00", "02 06:30:00"]),
    ("a leap day", "0 0 29 2 *", "UTC", "2026-01-01T00:00:00", ["29 00:00:00"]),
]


@pytest.mark.parametrize(
    ("schedule", "zone", "start", "want"), [one[1:] for one in TICKS], ids=[one[0] for one in TICKS]
)
def test_ticks(schedule: str, zone: str, start: str, want: list[str]) -> None:
    assert ticks(schedule, zone, start, len(want)) == want


@pytest.mark.parametrize(
    "schedule", ["30 2 * * *", "15 30 2 * * *", "*/30 * * * *", "0 */2 * * *", "17 30 1-3 * * *", "*/7 * * * * *"]
)
@pytest.mark.parametrize("day", ["2026-03-28T20:00:00", "2026-10-24T20:00:00", "2026-06-01T00:00:00"])
def test_looking_back_finds_the_ticks_that_came(schedule: str, day: str) -> None:
    plan, start = Schedule.of(schedule, BERLIN), at(day, BERLIN)
    forward, moment = [], start
    while True:
        tick = plan.after(moment)
        assert tick is not None
        if tick > start + 12 * 3600:
            break
        forward.append(tick)
        moment = tick
    assert plan.between(start, start + 12 * 3600, 100_000) == forward
    assert plan.between(start, start + 12 * 3600, 3) == forward[-3:]


NOON = at("2026-05-01T12:00:00")
DUE: list[tuple[str, str, float, float, CatchUp, Due]] = [
    ("nothing yet", "0 * * * *", NOON, NOON + 3599, "all", Due(())),
    ("on time", "0 * * * *", NOON, NOON + 3600, "none", Due((NOON + 3600,))),
    ("a little late", "0 * * * *", NOON, NOON + 3600 + LATE, "none", Due((NOON + 3600,))),
    ("missed, none", "0 * * * *", NOON, NOON + 2 * 3600 + 60, "none", Due((), 2)),
    ("missed, latest", "0 * * * *", NOON, NOON + 2 * 3600 + 60, "latest", Due((NOON + 7200,), 1)),
    ("missed, all", "0 * * * *", NOON, NOON + 2 * 3600 + 60, "all", Due((NOON + 3600, NOON + 7200))),
    ("missed and one on time", "0 * * * *", NOON, NOON + 2 * 3600 + 1, "latest", Due((NOON + 7200,), 1)),
    ("not twice", "0 * * * *", NOON + 3600, NOON + 3601, "all", Due(())),
    ("the clock went back", "0 * * * *", NOON + 3600, NOON - 7200, "all", Due(())),
    (
        "all, but no more than so many",
        "* * * * *",
        NOON,
        NOON + 86400,
        "all",
        Due(tuple(NOON + 86400 - 60 * n for n in range(MOST))[::-1], 1),
    ),
]


@pytest.mark.parametrize(
    ("schedule", "last", "now", "catch_up", "want"), [one[1:] for one in DUE], ids=[one[0] for one in DUE]
)
def test_what_is_due(schedule: str, last: float, now: float, catch_up: CatchUp, want: Due) -> None:
    assert due(Schedule.of(schedule), last, now, catch_up) == want


@pytest.mark.parametrize("catch_up", CATCH_UPS)
@pytest.mark.parametrize("step", [1.0, 7.0, 31.0])
def test_a_day_of_looks_sends_each_tick_once(catch_up: CatchUp, step: float) -> None:
    """However often somebody looks, as long as it is not too seldom."""
    plan, last, sent = Schedule.of("*/5 * * * *", BERLIN), NOON, []
    now = NOON
    while now < NOON + 7200:
        now += step
        found = due(plan, last, now, catch_up)
        sent += found.ticks
        last = max(found.ticks, default=last)
    want = [NOON + 300 * n for n in range(1, 25)]
    assert [tick for tick in sent if tick <= NOON + 7000] == [t for t in want if t <= NOON + 7000] or (
        catch_up == "none" and step > LATE
    )
    assert len(sent) == len(set(sent))


@pytest.mark.parametrize(
    ("schedule", "zone", "named"),
    [
        ("* * * *", None, "spec.schedule"),
        ("* * * * * * *", None, "spec.schedule"),
        ("61 * * * *", None, "spec.schedule"),
        ("0 0 30 2 *", None, "spec.schedule"),
        ("@hourly", None, "spec.schedule"),
        ("", None, "spec.schedule"),
        ("* * * * *", "Mars/Olympus", "spec.timezone"),
        ("* * * * *", "../../etc/passwd", "spec.timezone"),
    ],
)
def test_what_is_no_schedule_is_named(schedule: str, zone: str | None, named: str) -> None:
    with pytest.raises(BadInput, match=named.replace(".", r"\.")):
        Schedule.of(schedule, zone)
