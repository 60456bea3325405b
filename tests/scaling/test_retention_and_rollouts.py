"""Which revisions may go, and how traffic moves: tables of decisions, without a clock."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from relight.base.errors import BadInput
from relight.decide.retention import Candidate, Retention, collect
from relight.decide.rollouts import Rollout, advance

HOUR = 3600.0


def revisions(*ages: float, active: tuple[int, ...] = ()) -> list[Candidate]:
    """Revisions by their age in hours; those at the places in ``active`` are active."""
    return [Candidate(f"r{at}", -age * HOUR, -age * HOUR, at in active) for at, age in enumerate(ages)]


@pytest.mark.parametrize(
    ("rules", "given", "gone"),
    [
        pytest.param(Retention(min_inactive=0), revisions(100, 50, 1), ["r0", "r1"], id="old-ones-go-oldest-first"),
        pytest.param(Retention(min_inactive=2), revisions(100, 50, 49), ["r0"], id="a-minimum-stays"),
        pytest.param(Retention(min_inactive=0), revisions(100, 50, active=(0,)), ["r1"], id="active-ones-stay"),
        pytest.param(Retention(), revisions(*range(100, 120)), [], id="twenty-stay-by-default"),
        pytest.param(Retention(), revisions(*range(100, 122)), ["r21", "r20"], id="what-is-more-than-twenty-goes"),
        pytest.param(Retention(None, None, 0, 2), revisions(3, 2, 1), ["r0"], id="a-maximum-whatever-their-age"),
        pytest.param(Retention(None, None, 0, None), revisions(900, 800), [], id="all-rules-off"),
        pytest.param(Retention(None, 15 * HOUR, 0), revisions(16, 14), ["r0"], id="only-the-time-since-it-was-active"),
        pytest.param(
            Retention(min_inactive=0),
            [Candidate("r", -100 * HOUR, -1 * HOUR, False)],
            [],
            id="made-long-ago-but-active-lately",
        ),
    ],
)
def test_what_may_go(rules: Retention, given: list[Candidate], gone: list[str]) -> None:
    assert collect(rules, given, 0.0) == gone


def test_config_gc() -> None:
    assert Retention.from_config({}) == Retention()
    read = Retention.from_config(
        {
            "retain-since-create-time": "1h",
            "retain-since-last-active-time": "disabled",
            "min-non-active-revisions": "3",
            "max-non-active-revisions": "disabled",
            "_example": "what ships with a cluster",
        }
    )
    assert read == Retention(HOUR, None, 3, None)
    with pytest.raises(BadInput) as caught:
        Retention.from_config({"retain-since-create-time": "soon", "min-non-active-revisions": "disabled"})
    assert {one.path for one in caught.value.problems} == {"retain-since-create-time", "min-non-active-revisions"}
    with pytest.raises(BadInput, match="max-non-active-revisions"):
        Retention.from_config({"min-non-active-revisions": "9", "max-non-active-revisions": "3"})


def shares(state: Rollout) -> dict[str, int]:
    return dict(state.shares)


def test_a_rollout_begins_with_one_percent_and_ends_on_time() -> None:
    state = advance(None, "a", 100, 10.0, 0.0)
    assert (shares(state), state.done) == ({"a": 100}, True)
    state = advance(state, "b", 100, 10.0, 100.0)
    assert shares(state) == {"a": 99, "b": 1}
    now, seen = 100.0, [1]
    while not state.done:
        before, now = state, state.next_at
        assert advance(state, "b", 100, 10.0, now - 0.001) == before, "nothing moves before its time"
        state = advance(state, "b", 100, 10.0, now)
        assert sum(shares(state).values()) == 100
        seen.append(shares(state)["b"])
    assert now <= 110.0 + 1e-9
    assert seen == sorted(seen)
    assert {later - earlier for earlier, later in itertools.pairwise(seen[:-1])} == {10}


@pytest.mark.parametrize(
    ("percent", "duration", "steps"),
    [(100, 1000.0, 99), (100, 99.0, 99), (50, 10.0, 10), (2, 10.0, 1)],
    ids=["one-percent-at-a-time", "one-a-second", "half-of-a-route", "two-percent"],
)
def test_steps_are_of_at_least_a_second_and_a_percent(percent: int, duration: float, steps: int) -> None:
    state = advance(Rollout((("a", percent),)), "b", percent, duration, 0.0)
    taken = 0
    while not state.done:
        assert state.every >= 1.0
        assert state.step >= 1
        state = advance(state, "b", percent, duration, state.next_at)
        taken += 1
    assert taken == steps
    assert shares(state) == {"b": percent}


def test_one_that_comes_in_between() -> None:
    state = Rollout((("a", 60), ("b", 40)), 10, 1.0, 5.0)
    state = advance(state, "c", 100, 10.0, 2.0)
    assert shares(state) == {"a": 60, "b": 39, "c": 1}, "the newest gives it its first percent"
    state = advance(state, "c", 100, 10.0, state.next_at)
    assert shares(state) == {"a": 50, "b": 39, "c": 11}, "the oldest is emptied first"
    assert shares(advance(state, "a", 100, 10.0, 3.0)) == {"b": 39, "c": 11, "a": 50}, "back to one that has a share"


def test_missed_steps_are_made_up_for() -> None:
    state = advance(Rollout((("a", 100),)), "b", 100, 10.0, 0.0)
    assert shares(advance(state, "b", 100, 10.0, 5.0)) == {"a": 49, "b": 51}
    assert shares(advance(state, "b", 100, 10.0, 500.0)) == {"b": 100}


@pytest.mark.parametrize(
    ("percent", "expected"),
    [(120, {"a": 60, "b": 60}), (50, {"a": 10, "b": 40}), (30, {"b": 30})],
    ids=["more-goes-to-the-newest", "less-is-taken-from-the-oldest", "the-oldest-may-be-gone"],
)
def test_another_share_of_the_route(percent: int, expected: dict[str, int]) -> None:
    state = Rollout((("a", 60), ("b", 40)), 10, 1.0, 5.0)
    assert shares(advance(state, "b", percent, 10.0, 0.0)) == expected


@pytest.mark.parametrize(
    ("before", "percent", "duration"),
    [(None, 100, 10.0), (Rollout((("a", 100),)), 100, 0.0), (Rollout((("a", 1),)), 1, 10.0)],
    ids=["nothing-before", "no-duration", "a-share-of-one-percent"],
)
def test_where_there_is_nothing_to_roll_out(before: Any, percent: int, duration: float) -> None:
    assert shares(advance(before, "b", percent, duration, 0.0)) == {"b": percent}


def test_a_state_survives_being_written_down() -> None:
    state = advance(Rollout((("a", 100),)), "b", 100, 7.0, 1234.5)
    fields = dataclasses.asdict(state)
    assert Rollout(**fields) == state
