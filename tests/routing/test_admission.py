from __future__ import annotations

import random
from collections import Counter

import pytest

from relight.base.errors import Overloaded
from relight.decide.admission import HoldLimits, choose, refuse

LIMITS = HoldLimits(max_requests=3, max_bytes=1000, retry_after=2.0)


@pytest.mark.parametrize(
    ("held", "held_bytes", "nbytes", "refused"),
    [
        pytest.param(0, 0, 1, None, id="empty"),
        pytest.param(2, 0, 1, None, id="the last place"),
        pytest.param(3, 0, 1, "the limit is 3", id="full in number"),
        pytest.param(1, 400, 600, None, id="exactly full in bytes"),
        pytest.param(1, 400, 601, "limit of 1000", id="over in bytes"),
        pytest.param(0, 0, 1001, "limit of 1000", id="one that is too large alone"),
    ],
)
def test_refuse(held: int, held_bytes: int, nbytes: int, refused: str | None) -> None:
    error = refuse(held, held_bytes, nbytes, LIMITS)
    if refused is None:
        assert error is None
    else:
        assert isinstance(error, Overloaded)
        assert refused in error.message
        assert error.retry_after == 2.0


@pytest.mark.parametrize(
    ("in_flight", "concurrency", "turn", "at", "want"),
    [
        pytest.param([], 0, 0, 0.0, None, id="no replica"),
        pytest.param([9], 0, 0, 0.9, 0, id="no limit, one replica"),
        pytest.param([5, 2], 0, 0, 0.0, 1, id="no limit, two: the less loaded, whichever was drawn first"),
        pytest.param([5, 2], 0, 0, 0.99, 1, id="no limit, two: the same"),
        pytest.param([2, 2], 0, 0, 0.0, 0, id="no limit, a tie: the one drawn first"),
        pytest.param([2, 2], 0, 0, 0.99, 1, id="no limit, a tie: the other was drawn first"),
        pytest.param([0, 0, 0], 1, 2, 0.9, 0, id="limit 1: the first, not in turn"),
        pytest.param([1, 0, 0], 1, 0, 0.0, 1, id="limit 1: the first that is free"),
        pytest.param([1, 1, 1], 1, 0, 0.0, None, id="limit 1: none is free"),
        pytest.param([2, 0], 3, 1, 0.0, 0, id="limit 3: fills the first before the second"),
        pytest.param([3, 0], 3, 1, 0.0, 1, id="limit 3: the first is full"),
        pytest.param([0, 0, 0], 4, 1, 0.0, 1, id="limit 4: in turn"),
        pytest.param([0, 4, 0], 4, 1, 0.0, 2, id="limit 4: in turn, past a full one"),
        pytest.param([0, 4, 4], 4, 4, 0.0, 0, id="limit 4: round the end"),
        pytest.param([4, 4], 4, 0, 0.0, None, id="limit 4: all full"),
    ],
)
def test_choose(in_flight: list[int], concurrency: int, turn: int, at: float, want: int | None) -> None:
    assert choose(in_flight, concurrency, turn, at) == want


def test_two_drawn_are_two() -> None:
    """One of five is busy: were both draws able to be the same replica, it would be chosen once in 25."""
    draw = random.Random(3)
    counts = Counter(choose([0, 0, 9, 0, 0], 0, 0, draw.random()) for _ in range(5_000))
    assert counts[2] == 0
    assert all(abs(counts[index] - 1250) < 200 for index in (0, 1, 3, 4))
