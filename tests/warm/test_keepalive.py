"""Plans: what is learned from idle times, weighed in money."""

from __future__ import annotations

import numpy as np
import pytest

from relight.decide import keepalive
from relight.decide.idletimes import (
    BINS,
    BYTES,
    CLASSES,
    EDGES,
    MEMORY,
    RECENT,
    IdleTimes,
    bin_of,
    merged,
    pace_of,
)
from relight.decide.keepalive import Costs, Prices

ROWS = np.array([0])


def costs(cold: float = 10.0, share: float = 0.25, prices: Prices | None = None) -> Costs:
    return Costs(np.array([cold]), np.array([share]), prices or Prices())


def taught(*idle: float, times: IdleTimes | None = None) -> IdleTimes:
    """One function that had these idle times, one after the other."""
    times = times or IdleTimes(1)
    for seconds in idle:
        one = np.array([1.0])
        times.learn(ROWS, times.pace(ROWS), np.array([seconds]), one, one.astype(bool))
    return times


def plan(times: IdleTimes, **given: float) -> tuple[float, float, float]:
    found = keepalive.decide(times.known(ROWS, times.pace(ROWS)), costs(**given))
    return float(found.keep[0]), float(found.ready[0]), float(found.until[0])


def test_bins_hold_what_is_between_their_edges() -> None:
    for at in range(1, BINS - 1):
        assert list(bin_of(np.array([EDGES[at] * 1.0001, EDGES[at + 1] * 0.9999]))) == [at, at]
    assert list(bin_of(np.array([0.0, -1.0, 1e9]))) == [0, 0, BINS - 1]


def test_paces_and_a_function_that_was_never_seen_sleeps() -> None:
    assert list(pace_of(np.array([0.0, 74.0, 76.0, 299.0, 1e4, np.nan]))) == [0, 0, 1, 1, 3, CLASSES - 1]


def test_an_idle_function_takes_less_than_a_kilobyte() -> None:
    times = IdleTimes(1000)
    held = (times.counts, times.recent, times.began, times.week)
    assert sum(one.nbytes for one in held) / 1000 == BYTES < 1000


def test_nothing_known_is_half_of_the_break_even() -> None:
    found = keepalive.prior(costs())
    # 10 s x (0.004 + 0.0002) / 0.0002 a second = 210 s of idling cost one cold start.
    assert costs().break_even[0] == pytest.approx(210.0)
    assert found.keep[0] == pytest.approx(105.0)
    assert np.isinf(found.ready).all()


def test_short_idle_times_are_kept_through_and_long_ones_let_go() -> None:
    keep, ready, _ = plan(taught(*[1.0, 35.0, 5.0, 42.0] * 10))
    assert 42.0 <= keep < 70.0
    assert np.isinf(ready), "a start is not worth it where one would be kept until it begins"
    draw = np.random.default_rng(1)
    keep, ready, _ = plan(taught(*draw.uniform(5000, 50000, 40)))
    assert keep == 0.0
    assert np.isinf(ready)


@pytest.mark.parametrize("period", [300.0, 3600.0, 21600.0, 86400.0])
def test_a_timer_is_met_just_in_time(period: float) -> None:
    keep, ready, until = plan(taught(*[period + jitter for jitter in (-1.0, 0.0, 1.0, 0.5) * 4]))
    assert keep == 0.0
    assert period - 10 < ready < period - 1
    assert period + 1 < until < period + 10


def test_a_timer_whose_spread_costs_more_than_a_cold_start_is_not_met() -> None:
    draw = np.random.default_rng(2)
    keep, ready, _ = plan(taught(*draw.normal(7200.0, 900.0, 20)), cold=1.0, share=1.0)
    assert (keep, ready) == (0.0, np.inf)


MONEY: list[tuple[str, float, float, float, bool]] = [
    ("a slow start pays for idling", 100.0, 0.125, 0.004, True),
    ("a quick one does not", 0.2, 0.125, 0.004, False),
    ("nor does a whole GPU", 10.0, 1.0, 0.004, False),
    ("unless waiting is dear", 10.0, 1.0, 0.4, True),
]


@pytest.mark.parametrize(
    ("cold", "share", "waiting", "kept"), [row[1:] for row in MONEY], ids=[row[0] for row in MONEY]
)
def test_the_window_is_capped_by_cost(cold: float, share: float, waiting: float, kept: bool) -> None:
    draw = np.random.default_rng(3)
    times = taught(*draw.exponential(400.0, 60))
    found = keepalive.decide(times.known(ROWS, times.pace(ROWS)), costs(cold, share, Prices(waiting=waiting)))
    assert bool(found.keep[0] > 300.0) is kept


def test_a_new_pattern_forgets_the_old_one() -> None:
    times = taught(*[3600.0] * 60)
    assert plan(times)[1] > 3000
    taught(*[30.0] * RECENT, times=times)
    keep, ready, until = plan(times)
    assert keep >= 30.0 or ready < 30.0 < until < 300.0


CHANGES = [
    ("twice as fast", 3600.0, 1800.0, 4),
    ("twice as slow", 3600.0, 7200.0, 4),
    ("a little slower", 900.0, 1200.0, 4),
    ("from days to hours", 86400.0, 3600.0, 4),
    ("from hours to days", 3600.0, 86400.0, 4),
    ("to what is called often", 600.0, 300.0, 5),
]


@pytest.mark.parametrize(("old", "new", "missed"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES])
def test_a_timer_that_changes_its_period_is_met_after_a_few_calls(old: float, new: float, missed: int) -> None:
    draw = np.random.default_rng(1)
    times = taught(*old + draw.uniform(-1, 1, 60))
    met = []
    for seconds in new + draw.uniform(-1, 1, 30):
        keep, ready, until = plan(times)
        met.append(seconds <= keep or ready <= seconds <= until)
        taught(seconds, times=times)
    assert met == [False] * missed + [True] * (30 - missed)


def test_what_was_always_there_is_no_new_pattern() -> None:
    draw = np.random.default_rng(4)
    times = taught(*draw.uniform(2000, 20000, 60))
    before = plan(times)
    taught(5000.0, 5001.0, 5002.0, 5001.0, times=times)
    assert plan(times)[1] == before[1] == np.inf, "four alike in a row, of what has come at that time before"


def test_counts_fade_with_samples_not_with_time() -> None:
    times = taught(*[100.0] * int(5 * MEMORY))
    assert times.counts.sum() == pytest.approx(MEMORY, rel=0.1)


def test_one_of_which_little_is_known_is_taken_for_the_others() -> None:
    times = IdleTimes(20)
    for _ in range(30):
        rows = np.arange(19)
        times.learn(rows, times.pace(rows), np.full(19, 40.0), np.ones(19), np.ones(19, bool))
    chances, samples = times.chances(np.array([19]), pace_of(np.array([40.0])))
    assert chances[0, bin_of(np.array([40.0]))[0]] > 0.9
    assert samples.tolist() == [0.0]


def test_histograms_merge() -> None:
    one, other = taught(*[30.0] * 5), taught(*[3000.0] * 7)
    both = merged(one.counts[0], other.counts[0])
    assert both.sum() == pytest.approx(one.counts.sum() + other.counts.sum(), rel=0.01)
    full = np.full((1, 4), 60000.0, np.float16)
    assert np.isfinite(merged(full, full)).all()


def test_what_a_plan_is_worth_on_the_idle_times_that_were_seen() -> None:
    recent = np.full((1, RECENT), np.nan, np.float32)
    recent[0, -2:] = [50.0, 500.0]
    price = costs()
    worth = keepalive.worth(recent, np.array([100.0]), np.array([np.inf]), np.array([np.inf]), price)
    # Of two idle times one is met: 50 s burnt, and 100 s for the one that is not. One unseen more counts as nothing.
    assert worth[0] == pytest.approx((price.penalty[0] - 150.0 * price.rate[0]) / 3)
