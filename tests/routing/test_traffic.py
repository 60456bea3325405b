from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest

from relight.base.errors import BadInput
from relight.decide.traffic import pick, tagged


@dataclass(frozen=True)
class T:
    name: str
    percent: int
    tag: str | None = None


A, B, C, ZERO = T("a", 50), T("b", 30), T("c", 20, "canary"), T("z", 0, "old")


@pytest.mark.parametrize(
    ("targets", "at", "want"),
    [
        pytest.param([T("only", 100)], 0.999999, "only", id="one takes all"),
        pytest.param([A, B, C], 0.0, "a", id="the first share begins at 0"),
        pytest.param([A, B, C], 0.4999, "a", id="and ends before its percent"),
        pytest.param([A, B, C], 0.5, "b", id="where the second begins"),
        pytest.param([A, B, C], 0.7999, "b", id="the second's end"),
        pytest.param([A, B, C], 0.9999, "c", id="the last"),
        pytest.param([ZERO, A, T("d", 50)], 0.0, "a", id="0 percent is skipped though it is first"),
        pytest.param([T("d", 100), ZERO], 0.999999999999, "d", id="0 percent is skipped though it is last"),
        pytest.param([T("d", 40), T("e", 40)], 0.95, "e", id="a rest that belongs to nobody goes to the last"),
    ],
)
def test_pick(targets: list[T], at: float, want: str) -> None:
    assert pick(targets, at).name == want


@pytest.mark.parametrize("targets", [[], [ZERO]], ids=["no target", "only a tag"])
def test_nobody_takes_traffic(targets: list[T]) -> None:
    with pytest.raises(BadInput, match="no target"):
        pick(targets, 0.5)


def test_shares_over_many_draws() -> None:
    draw = random.Random(7)
    counts = Counter(pick([A, B, C, ZERO], draw.random()).name for _ in range(10_000))
    assert counts["z"] == 0
    for target in (A, B, C):
        assert abs(counts[target.name] - target.percent * 100) < 200


def test_tags() -> None:
    assert tagged([A, C, ZERO], "canary") is C
    assert tagged([A, C, ZERO], "old") is ZERO
    assert tagged([A, C, ZERO], "c") is None
