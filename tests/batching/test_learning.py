"""What is learned from runs: which sizes pay, and whether a loop's thread may make them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from relight.decide.costs import GROWTH, OVERHEAD, REVISIT, SURE, Costs
from relight.decide.inlining import CUT, ENTER, HEALED, LEAVE, PROBATION, Inlining


def ladder(rows: int) -> list[int]:
    return [*(2**n for n in range(rows.bit_length()) if 2**n < rows), rows]


def worked(costs: Costs, cost: Callable[[int], float], runs: int, waiting: int = 32) -> list[int]:
    """The sizes that are chosen run after run, each of them learned from."""
    sizes = []
    for _ in range(runs):
        size = costs.best(ladder(waiting))
        sizes.append(size)
        costs.learn(size, cost(size))
    return sizes


CURVES = {
    "a GPU: any size takes as long": (lambda rows: 0.01, 32),
    "a tiny model: a run costs more than a row": (lambda rows: 20e-6 + rows * 0.2e-6, 32),
    "an encoder on two threads: alone is cheapest": (lambda rows: 0.012 * rows * (1 if rows == 1 else 1.33), 1),
    "no difference: small ones do not wait for large ones": (lambda rows: 0.01 * rows, 1),
    "up to eight it pays": (lambda rows: 0.01 + 0.001 * rows if rows <= 8 else 0.005 * rows, 8),
}


@pytest.mark.parametrize(("cost", "best"), CURVES.values(), ids=CURVES.keys())
def test_the_size_that_pays_is_found_and_kept(cost: Callable[[int], float], best: int) -> None:
    sizes = worked(Costs(), cost, 200)
    assert sizes[0] == 8, "the first try of all is a careful one"
    assert sizes[40:] == [best] * 160


def test_sizes_grow_with_what_is_known() -> None:
    costs = Costs()
    assert costs.best(ladder(1000)) == 8
    costs.learn(8, 0.01)
    assert costs.best(ladder(1000)) <= 8 * GROWTH


def test_what_did_not_pay_is_tried_again_rarely_and_the_rarer_the_worse() -> None:
    def steep(rows: int) -> float:
        return 0.01 * rows * (1 if rows == 1 else 1.5)

    costs = Costs()
    worked(costs, steep, 100, waiting=2)
    again = worked(costs, steep, int(3 * REVISIT * 1.5**2) + 3, waiting=2)
    assert 2 <= again.count(2) <= 3
    terrible = Costs()
    worked(terrible, lambda rows: 0.01 if rows == 1 else 10.0, 20, waiting=2)
    assert worked(terrible, lambda rows: 0.01, 2000, waiting=2).count(2) == 0


def test_when_the_cost_changes_so_does_the_size() -> None:
    costs = Costs()
    assert worked(costs, lambda rows: 0.01 * rows, 100)[-1] == 1
    assert worked(costs, lambda rows: 0.01, 3000)[-1] > 1


def test_one_slow_first_run_and_one_interruption_are_not_believed() -> None:
    costs = Costs()
    for seconds in (5.0, 0.01, 0.01):
        costs.learn(4, seconds)
    assert costs.run(4) == pytest.approx(0.01)
    costs.learn(4, 1.0)
    assert costs.run(4) == pytest.approx(0.012)


def test_between_known_sizes_costs_are_linear_and_above_in_proportion() -> None:
    costs = Costs()
    for rows, seconds in ((1, 1.0), (8, 8.0), (16, 12.0)):
        for _ in range(SURE):
            costs.learn(rows, seconds)
    assert costs.run(1) == 1
    assert costs.run(12) == 10
    assert costs.run(4) is None
    assert costs.at_most(4) == pytest.approx(4.0)
    assert costs.run(17) is None
    assert costs.at_most(32) == 24
    assert Costs().at_most(1) is None
    assert OVERHEAD < 0.001


def test_only_known_quick_models_are_run_on_the_loop() -> None:
    inlining = Inlining()
    assert not inlining.allows(ENTER / 2)
    for _ in range(PROBATION):
        assert not inlining.allows(ENTER / 2)
        inlining.in_thread(ENTER / 2)
    assert inlining.allows(ENTER / 2)
    assert inlining.allows(LEAVE), "what runs there stays up to here"
    assert not inlining.allows(LEAVE * 1.01)
    assert not inlining.allows(None), "a size of unknown cost goes to a thread"


def test_a_slow_model_never_is() -> None:
    inlining = Inlining()
    for _ in range(1000):
        inlining.in_thread(ENTER * 1.1)
        assert not inlining.allows(ENTER / 2)


def test_a_model_that_is_slow_at_times_is_not() -> None:
    inlining = Inlining()
    for _ in range(100):
        for _ in range(PROBATION - 1):
            inlining.in_thread(ENTER / 2)
        inlining.in_thread(CUT * 2)
    assert not inlining.allows(ENTER / 2)


def test_a_long_run_closes_the_way_each_time_for_longer() -> None:
    inlining = Inlining()
    for strike in range(4):
        for _ in range(PROBATION * 2**strike):
            assert not inlining.allows(ENTER)
            inlining.in_thread(ENTER)
        assert inlining.allows(ENTER)
        inlining.on_loop(CUT * 2)
    for _ in range(PROBATION * 16):
        inlining.in_thread(ENTER)
    for _ in range(HEALED * 4):
        inlining.on_loop(ENTER)
    inlining.on_loop(CUT * 2)
    for _ in range(PROBATION * 2):
        inlining.in_thread(ENTER)
    assert inlining.allows(ENTER), "long ago is forgiven"
