"""The hour of the week in plans: what is called at some times of the day, and on some days only."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from relight.decide import keepalive
from relight.decide.hours import UNKNOWN, WEEK, alike, days_of, days_off, growth, hour_of, merged_weeks, watched
from relight.decide.idletimes import IdleTimes
from relight.decide.keepalive import Costs, Prices
from relight.warm.functions import Function, pack, unpack
from relight.warm.generating import generate
from relight.warm.policies import ours
from relight.warm.simulating import Entries, simulate

ROWS = np.array([0])
ONE = np.array([1.0])
HOUR, DAY = 3600.0, 86400.0
WORKDAYS, ALL_DAYS = range(5), range(7)

HOURS = [
    ("1970 began on a Thursday", 0.0, 3 * 24),
    ("a Monday, 00:00 UTC", 4 * DAY, 0),
    ("a second before it", 4 * DAY - 1, WEEK - 1),
    ("Wednesday, 2026-07-01 09:30 UTC", 1782898200.0, 2 * 24 + 9),
]


@pytest.mark.parametrize(("moment", "hour"), [row[1:] for row in HOURS], ids=[row[0] for row in HOURS])
def test_hours_of_the_week(moment: float, hour: int) -> None:
    assert hour_of(moment) == hour


ALIKE = [
    ("the same hour", 9, 9, True),
    ("of another day", 3 * 24 + 9, 9, True),
    ("an hour before", 8, 9, True),
    ("across midnight", 23, 24, True),
    ("across the end of the week", WEEK - 1, 0, True),
    ("two hours apart", 11, 9, False),
    ("not known", UNKNOWN, 15, False),  # 255 is 15 o'clock of some day
]


@pytest.mark.parametrize(("began", "hour", "same"), [row[1:] for row in ALIKE], ids=[row[0] for row in ALIKE])
def test_what_is_the_same_time_of_day(began: int, hour: int, same: bool) -> None:
    assert alike(np.array([[began]], np.uint8), np.array([hour])).tolist() == [[same]]


def test_days_on_which_idle_times_began() -> None:
    began = np.array([[9, 10, 24 + 9, 48 + 9]], np.uint8)
    assert days_of(began, np.array([[True, True, True, False]])).tolist() == [2]


GROWTH = [
    ("twice as many", 10.0, 20.0, 2.0),
    ("half as many", 10.0, 5.0, 0.5),
    ("no wilder than that", 10.0, 1000.0, 4.0),
    ("nor the other way", 10.0, 0.0, 0.25),
    ("hardly a call to compare with", 0.5, 10.0, 1.0),
    ("this hour was never watched", np.nan, 10.0, 1.0),
    ("the coming one was not", 10.0, np.nan, 1.0),
]


@pytest.mark.parametrize(("last", "coming", "times"), [row[1:] for row in GROWTH], ids=[row[0] for row in GROWTH])
def test_how_many_times_the_calls_come_in_the_next_hour(last: float, coming: float, times: float) -> None:
    known = np.full((1, WEEK), np.nan, np.float16)
    known[0, 8], known[0, 9] = last, coming
    assert growth(known, 8, 9).tolist() == [times]


def week(days: range, hour: int, calls: float = 1.0) -> np.ndarray:
    found = np.zeros((1, WEEK), np.float16)
    found[0, [24 * day + hour for day in days]] = calls
    return found


NEVER = np.full((1, WEEK), np.nan, np.float16)
FRIDAY, MONDAY = 4 * 24 + 17, 17
NIGHT = 15.5 * HOUR
OFF = [
    ("Friday evening to Monday morning", week(WORKDAYS, 8), FRIDAY, NIGHT, 2),
    ("Monday evening to Tuesday morning", week(WORKDAYS, 8), MONDAY, NIGHT, 0),
    ("called on all days", week(ALL_DAYS, 8), FRIDAY, NIGHT, 0),
    ("a little later than usual", week(WORKDAYS, 9), FRIDAY, NIGHT, 2),
    ("never watched", NEVER, FRIDAY, NIGHT, 0),
    ("hardly called at all", week(WORKDAYS, 8, 0.1), FRIDAY, NIGHT, 0),
    ("once a week, on Mondays", week(range(1), 8, 2.0), 8, DAY, 6),
]


@pytest.mark.parametrize(("weeks", "hour", "seconds", "days"), [row[1:] for row in OFF], ids=[row[0] for row in OFF])
def test_days_without_calls_are_passed_over(weeks: np.ndarray, hour: int, seconds: float, days: int) -> None:
    assert days_off(weeks, np.array([hour]), np.array([seconds])).tolist() == [days]


def test_the_calls_of_an_hour_follow_the_last_weeks() -> None:
    held = np.full((2, WEEK), np.nan, np.float16)
    watched(held, 5, np.array([4.0, 0.0]))
    assert held[:, 5].tolist() == [4.0, 0.0]
    assert np.isnan(held[:, 6]).all()
    for _ in range(3):
        watched(held, 5, np.array([0.0, 0.0]))
    assert 0.9 < held[0, 5] < 1.2, "0.65 to the third of it"


def test_two_observers_of_one_function_saw_its_parts() -> None:
    one, other = np.full((3, WEEK), np.nan, np.float16)[:, :3], np.zeros((3, 3), np.float16)
    one[0] = (1.0, 2.0, 60000.0)
    other[0] = (3.0, np.nan, 60000.0)
    other[1:] = np.nan
    both = merged_weeks(one, other)
    assert both[0].tolist() == [4.0, 2.0, 60000.0]
    assert np.isnan(both[1:]).all()
    assert np.array_equal(both, merged_weeks(other, one), equal_nan=True)


def called(days: int, *times: float, on: range = ALL_DAYS, watch: bool = True) -> IdleTimes:
    """One function with calls at these hours of the day, from a Monday on."""
    found = IdleTimes(1)
    moments = [day * DAY + at * HOUR for day in range(days) if day % 7 in on for at in times]
    for before, now in itertools.pairwise(moments):
        hour = np.array([int(before // HOUR) % WEEK])
        found.learn(ROWS, found.pace(ROWS), np.array([now - before]), ONE, ONE.astype(bool), hour)
    if watch:
        for hour in range(days * 24):
            watched(found.week, hour % WEEK, np.array([sum(moment // HOUR == hour for moment in moments)], float))
    return found


def plan(times: IdleTimes, hour: int | None, cold: float = 10.0) -> tuple[float, float, float]:
    price = Costs(np.array([cold]), np.array([0.25]), Prices())
    known = times.known(ROWS, times.pace(ROWS))
    found = keepalive.decide(known, price, None if hour is None else np.array([hour]))
    return float(found.keep[0]), float(found.ready[0]), float(found.until[0])


REPORTS = (8.5, 12.0, 17.25)
NEXT = [
    ("in the morning", 7 * 24 + 8, 3.5 * HOUR),
    ("at noon", 7 * 24 + 12, 5.25 * HOUR),
    ("in the evening", 7 * 24 + 17, 15.25 * HOUR),
    ("before the weekend", 11 * 24 + 17, 63.25 * HOUR),
]


@pytest.mark.parametrize(("hour", "seconds"), [row[1:] for row in NEXT], ids=[row[0] for row in NEXT])
def test_what_is_called_on_workdays_at_some_times_is_met_each_time(hour: int, seconds: float) -> None:
    times = called(7, *REPORTS, on=WORKDAYS)
    keep, ready, until = plan(times, hour % WEEK)
    assert keep == 0.0
    assert seconds - 30.0 < ready < seconds < until < seconds + 10.0


def test_without_the_hour_only_one_of_them_is_met() -> None:
    times = called(7, *REPORTS, on=WORKDAYS)
    _, ready, until = plan(times, None)
    assert sum(ready <= seconds <= until for _, _, seconds in NEXT) <= 1


FEW = [
    ("three days are too few", called(3, *REPORTS)),
    ("one afternoon is no habit", called(1, *(13.0 + at * 0.6 for at in range(8)))),
]


@pytest.mark.parametrize("times", [row[1] for row in FEW], ids=[row[0] for row in FEW])
def test_few_samples_make_no_season(times: IdleTimes) -> None:
    for hour in range(0, WEEK, 5):
        assert plan(times, hour) == plan(times, None)


def test_a_function_that_is_called_fast_now_is_not_let_go_for_a_habit() -> None:
    times = called(10, *REPORTS)
    for _ in range(4):
        times.learn(ROWS, times.pace(ROWS), np.array([20.0]), ONE, ONE.astype(bool), np.array([WEEK // 2]))
    for hour in range(0, WEEK, 5):
        assert plan(times, hour) == plan(times, None)


@pytest.mark.parametrize("seed", [0, 1])
def test_calls_of_a_calendar_find_more_replicas_for_less_money(seed: int) -> None:
    entries, prices = Entries(generate("calendar", functions=60, seed=seed)), Prices()
    without, found = (simulate(entries, ours(entries, prices, seasons=on)) for on in (False, True))
    assert found.cold.sum() < 0.8 * without.cold.sum()
    assert found.money(prices) < 0.8 * without.money(prices)


def test_what_was_kept_before_hours_were_is_read() -> None:
    times = called(7, *REPORTS)
    text = pack(Function(0, cold=2.0), times)
    again = IdleTimes(1)
    assert unpack(text, 0, again) is not None
    for one, other in ((times.week, again.week), (times.began, again.began)):
        assert np.array_equal(one, other, equal_nan=one.dtype == np.float16)
    old = {key: value for key, value in json.loads(text).items() if key not in ("began", "week")}
    found = unpack(json.dumps(old), 0, again)
    assert found is not None
    assert found.cold == 2.0
    assert (again.began == UNKNOWN).all()
    assert np.isnan(again.week).all()
    assert np.array_equal(times.recent, again.recent, equal_nan=True)
    assert unpack(json.dumps({**old, "week": "AAAA"}), 0, again) is None, "what is broken is learned anew"


def test_what_is_kept_of_a_busy_function_fits_into_its_config_map() -> None:
    draw = np.random.default_rng(1)
    times = IdleTimes(1)
    times.counts[:] = draw.uniform(0, 160, times.counts.shape)
    times.week[:] = draw.uniform(0, 100, times.week.shape)
    times.recent[:] = draw.uniform(0, 1e5, times.recent.shape)
    assert len(pack(Function(0, reason="x" * 200), times)) * 400 < 2**20
