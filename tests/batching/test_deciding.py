"""Who rides with whom, and who waits: the decision alone, at times of the tests' own making."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from relight.base.errors import BadInput
from relight.decide.batching import BatchingSettings, Decision, Passenger, QueuePolicy, decide, parts
from relight.decide.costs import SURE, Costs

FLAT = {1: 0.010, 2: 0.010, 4: 0.010, 8: 0.010, 16: 0.010, 32: 0.010}
"""Runs of a GPU: any size takes as long."""
SLIGHT = {1: 0.010, 2: 0.0185, 4: 0.034, 8: 0.064}
"""Runs of one thread: together, rows cost a little less."""
STEEP = {1: 0.012, 2: 0.026, 4: 0.056, 8: 0.128, 16: 0.256, 32: 0.512}
"""Runs of a small encoder on two threads: together, rows cost a third more than alone."""


def known(runs: dict[int, float]) -> dict[int, Costs]:
    costs = Costs()
    for _ in range(SURE):
        for rows, seconds in runs.items():
            costs.learn(rows, seconds)
    return {0: costs}


@dataclass(eq=False, slots=True)
class Named(Passenger):
    name: str = ""


def queue(*waiting: str | tuple[str, dict[str, Any]]) -> list[Named]:
    """Passengers of one row each, named by letters, which came one after the other at 0."""
    found = []
    for one in waiting:
        name, fields = one if isinstance(one, tuple) else (one, {})
        found.append(Named(**({"rows": 1, "group": "g", "arrived": 0.0, "name": name} | fields)))
    return found


def said(decision: Decision[Named]) -> tuple[list[str], str, float | None]:
    runs = ["".join(one.name for one in batch) for batch in decision.batches]
    return runs, "".join(one.name for one in decision.expired), decision.look_again


S = BatchingSettings
EIGHT = S(8)


@dataclass
class Row:
    """One decision: what waits, and what is to be done."""

    waiting: list[Named]
    runs: list[str]
    settings: BatchingSettings = EIGHT
    idle: int = 1
    costs: dict[int, Costs] = field(default_factory=lambda: known(FLAT))
    gap: float | None = None
    now: float = 1.0
    expired: str = ""
    again: float | None = None


def g(name: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    return name, fields


REJECT = QueuePolicy(default_timeout=1.0)
DELAY = QueuePolicy("delay", default_timeout=1.0)
WAIT = S(8, max_queue_delay=5.0)

ROWS = {
    "nobody": Row([], []),
    "one, and an idle instance": Row(queue("a"), ["a"]),
    "one, and all are busy": Row(queue("a"), [], idle=0),
    "all that wait ride together": Row(queue("a", "b", "c"), ["abc"]),
    "nothing is known yet: together, and see": Row(queue("a", "b", "c"), ["abc"], costs={}),
    "nothing is known yet: not sixty at once": Row(queue(*"abcdefghij"), ["abcdefgh"], S(64), costs={}),
    "never past the cap": Row(queue(*"abcdef"), ["abcd", "ef"], S(4), idle=3),
    "rows count, not requests": Row(queue(g("a", rows=3), g("b", rows=2), "c"), ["a", "bc"], S(4), idle=2),
    "nobody of a group overtakes": Row(queue("a", g("b", rows=8), "c"), ["a", "b", "c"], idle=3),
    "a full one rides alone": Row(queue(g("a", rows=8), "b"), ["a", "b"], idle=2),
    "other shapes and parameters ride apart": Row(
        queue("a", g("x", group="h"), "b", g("y", group="h"), "c"), ["abc", "xy"], idle=2
    ),
    "the first of the queue goes first, whatever would fill more": Row(queue(g("x", group="h"), "a", "b"), ["x"]),
    "what cannot be merged rides alone": Row(queue(g("a", group=None), g("b", group=None)), ["a", "b"], idle=2),
    "as many runs as instances": Row(queue(g("a", group=1), g("b", group=2), g("c", group=3)), ["a", "b"], idle=2),
    # Cost.
    "together costs more than alone": Row(queue(*"abcdefgh"), ["a"], costs=known(STEEP)),
    "together costs more than alone, on two instances": Row(queue(*"abcd"), ["a", "b"], idle=2, costs=known(STEEP)),
    "a little less together, and a second instance idle": Row(
        queue(*"abcdefgh"), ["abcd", "efgh"], idle=2, costs=known(SLIGHT)
    ),
    "a little less together, and more wait than both can take": Row(
        queue(*"abcdefghijkl"), ["abcd", "efghijkl"], idle=2, costs=known(SLIGHT)
    ),
    "a little less together, and both can be full": Row(
        queue(*"abcdefghijklmnopq"), ["abcdefgh", "ijklmnop"], idle=2, costs=known(SLIGHT)
    ),
    "a little less together, on more instances than rows": Row(queue(*"ab"), ["a", "b"], idle=5, costs=known(SLIGHT)),
    "much less together: the second instance stays idle": Row(queue(*"abcdefgh"), ["abcdefgh"], idle=2),
    "four pay and eight do not": Row(queue(*"abcdefgh"), ["abcd"], costs=known({1: 1, 2: 1.5, 4: 2, 8: 6})),
    "a weight of its own is learned apart": Row(queue(g("a", weight=3), g("b", weight=3)), ["ab"], costs=known(STEEP)),
    "a saving of nothing is none": Row(queue(*"ab"), ["a"], costs=known({1: 1.0, 2: 1.99})),
    # Preferred sizes.
    "the largest preferred size that can be filled": Row(queue(*"abcdefg"), ["abcd"], S(8, (2, 4, 8))),
    "less than any preferred size goes all the same": Row(queue(*"abc"), ["abc"], S(8, (4, 8))),
    "a preferred size that does not pay": Row(queue(*"abcd"), ["a"], S(8, (4,)), costs=known(STEEP)),
    # The wait for company.
    "alone, with a long wait configured and rare traffic": Row(queue("a"), ["a"], WAIT, gap=0.5, now=0.0),
    "alone, with a long wait configured and nothing known": Row(queue("a"), ["a"], WAIT, costs={}, now=0.0),
    "others come faster than a run takes, and larger runs pay": Row(
        queue("a"), [], WAIT, gap=0.001, now=0.0, again=0.003
    ),
    "nobody came for a while": Row(queue("a"), ["a"], WAIT, gap=0.001, now=0.0031),
    "the wait is counted from the first arrival": Row(
        queue("a", g("b", arrived=0.0095)), [], S(8, max_queue_delay=0.010), gap=0.001, now=0.0097, again=0.010
    ),
    "the wait is over": Row(
        queue("a", g("b", arrived=0.0095)), ["ab"], S(8, max_queue_delay=0.01), gap=0.001, now=0.01
    ),
    "full does not wait": Row(queue(*"abcdefgh"), ["abcdefgh"], WAIT, gap=0.001, now=0.0),
    "the largest preferred size does not wait": Row(queue(*"abcd"), ["abcd"], S(8, (4,), 5.0), gap=0.001, now=0.0),
    "no wait where larger runs do not pay": Row(queue("a"), ["a"], WAIT, gap=0.001, now=0.0, costs=known(STEEP)),
    "who waits does not keep the others": Row(
        queue("a", g("x", group=None)), ["x"], WAIT, gap=0.001, now=0.0, again=0.003, idle=2
    ),
    # Time that is over.
    "too late": Row(queue(g("a", expires=1.0), "b"), ["b"], expired="a"),
    "too late, and all are busy": Row(queue(g("a", expires=0.5), "b"), [], idle=0, expired="a"),
    "soon too late": Row(queue(g("a", expires=3.0), g("b", expires=2.0)), [], idle=0, again=2.0),
    "in time": Row(queue(g("a", expires=3.0)), ["a"], again=3.0),
    "late ones leave alone": Row(queue("a", g("b", expires=0.1), "c"), ["ac"], expired="b"),
    "delayed: behind the others": Row(
        queue(g("a", expires=0.1), "b", "c"), ["bc", "a"], S(2, queue_policy=DELAY), idle=2
    ),
    "delayed: as company where there is room": Row(queue(g("a", expires=0.1), "b"), ["ba"], S(8, queue_policy=DELAY)),
    # Priority: 1 before 2, whoever came first.
    "the urgent one first": Row(
        queue(g("a", level=2, group=1), g("b", level=1, group=2)),
        ["b"],
        S(8, priority_levels=2, default_priority_level=2),
    ),
    "the urgent one takes along who fits": Row(
        queue(g("a", level=2), g("b", level=1)), ["ba"], S(8, priority_levels=2, default_priority_level=2)
    ),
    "of one level, the order of arrival": Row(
        queue(g("a", level=2), g("b", level=1), g("c", level=2), g("d", level=1)),
        ["bd", "ac"],
        S(2, priority_levels=2, default_priority_level=2),
        idle=2,
    ),
    "a level's own policy": Row(
        queue(g("a", level=1, expires=0.1), g("b", level=2, expires=0.1)),
        ["a"],
        S(8, priority_levels=2, default_priority_level=2, queue_policy=REJECT, queue_policies={1: DELAY}),
        expired="b",
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_decision(row: Row) -> None:
    decision = decide(row.waiting, row.idle, row.settings, row.costs, row.gap, row.now)
    runs, expired, again = said(decision)
    assert (runs, expired) == (row.runs, row.expired)
    assert again == pytest.approx(row.again)


def test_whatever_waits_the_rules_hold() -> None:
    draw = random.Random(24)
    for _ in range(2000):
        settings = S(
            draw.choice([1, 3, 8, 64]),
            max_queue_delay=draw.choice([0, 0.01]),
            priority_levels=draw.choice([0, 3]),
            default_priority_level=2,
        )
        waiting = [
            Named(
                draw.randint(1, settings.max_batch_size),
                draw.choice(["g", "h", None]),
                at / 1000,
                draw.choice([None, 0.01, 1.0]),
                draw.randint(1, 3) if settings.priority_levels else 0,
                name=str(at),
            )
            for at in range(draw.randint(0, 20))
        ]
        idle, now = draw.randint(0, 3), 0.02
        costs = draw.choice([{}, known(FLAT), known(STEEP)])
        check_rules(
            waiting, decide(waiting, idle, settings, costs, draw.choice([None, 0.001]), now), idle, settings, now
        )


def check_rules(
    waiting: Sequence[Named], decision: Decision[Named], idle: int, settings: BatchingSettings, now: float
) -> None:
    riding = [one for batch in decision.batches for one in batch]
    assert len({*map(id, riding), *map(id, decision.expired)}) == len(riding) + len(decision.expired), "nobody twice"
    assert len(decision.batches) <= idle
    late = [one for one in waiting if one.expires is not None and one.expires <= now]
    assert list(map(id, decision.expired)) == list(map(id, late)), "the late ones leave, and nobody else"
    for batch in decision.batches:
        assert 0 < sum(one.rows for one in batch) <= settings.max_batch_size
        assert len(batch) == 1 or {one.group for one in batch} in ({"g"}, {"h"})
    left = [one for one in waiting if one not in riding and one not in late]
    for one in left:
        before = [other for other in riding if other.group == one.group and other.level == one.level]
        assert all(other.arrived < one.arrived for other in before), "nobody of a group and a level is overtaken"
    if left and len(decision.batches) < idle:
        # An instance stays idle only while a wait pays, and then somebody looks again.
        assert settings.max_queue_delay > 0
        assert decision.look_again is not None
        assert decision.look_again > now


PARTS = {
    "fits": (8, 8, [8]),
    "one too many": (9, 8, [8, 1]),
    "twice": (16, 8, [8, 8]),
    "of one row": (3, 1, [1, 1, 1]),
    "small": (2, 8, [2]),
}


@pytest.mark.parametrize(("rows", "cap", "want"), PARTS.values(), ids=PARTS.keys())
def test_parts_of_a_large_request(rows: int, cap: int, want: list[int]) -> None:
    assert parts(rows, cap) == want


PATIENCE = {
    "nothing said": (QueuePolicy(), 0, 0),
    "the request's own": (QueuePolicy(), 2, 2),
    "the queue's": (QueuePolicy(default_timeout=3), 0, 3),
    "the request's, shorter": (QueuePolicy(default_timeout=3), 2, 2),
    "the request's, longer, is not taken": (QueuePolicy(default_timeout=3), 4, 3),
    "the request's does not count": (QueuePolicy(default_timeout=3, allow_timeout_override=False), 2, 3),
    "the request's does not count, and there is no other": (QueuePolicy(allow_timeout_override=False), 2, 0),
}


@pytest.mark.parametrize(("policy", "asked", "want"), PATIENCE.values(), ids=PATIENCE.keys())
def test_how_long_a_request_may_wait(policy: QueuePolicy, asked: float, want: float) -> None:
    assert S(8, queue_policy=policy).patience(0, asked) == want


@pytest.mark.parametrize(("asked", "level"), [(0, 2), (1, 1), (3, 3), (4, 2)])
def test_levels_beyond_the_last_are_the_default(asked: int, level: int) -> None:
    assert S(8, priority_levels=3, default_priority_level=2).level(asked) == level


def test_settings_that_make_no_sense_are_all_named() -> None:
    with pytest.raises(BadInput) as refused:
        S(0, (4,), -1.0, priority_levels=2, queue_policies={3: REJECT})
    assert [problem.path for problem in refused.value.problems] == [
        "max_batch_size",
        "preferred_batch_size",
        "max_queue_delay",
        "default_priority_level",
        "priority_queue_policy[3]",
    ]
