"""Which models give way to another: every decision about room, as a table."""

from __future__ import annotations

import random

import pytest

from relight.decide.residency import Admitted, Held, Refused, admit

A, B, C = Held("a", 40, 1.0), Held("b", 30, 2.0), Held("c", 20, 3.0)
BUSY_A = Held("a", 40, 1.0, busy=True)
KEPT_A = Held("a", 40, 1.0, kept=True)

ADMITTED = {
    "no budget, no limit": (10**12, 0, [A, B], ()),
    "it fits beside the others": (30, 100, [A, B], ()),
    "to the last byte": (30, 100, [A, B], ()),
    "the least recently used goes": (31, 100, [A, B], ("a",)),
    "two go where one is not enough": (60, 100, [A, B, C], ("a", "b")),
    "all go for the largest": (100, 100, [A, B, C], ("a", "b", "c")),
    "idle ones go before those in use": (31, 100, [BUSY_A, B], ("b",)),
    "those in use go last, and are waited for": (80, 100, [BUSY_A, B], ("b", "a")),
    "a small one stays if the large one alone is enough": (
        70,
        100,
        [Held("small", 5, 1.0), Held("large", 60, 2.0)],
        ("large",),
    ),
    "the successor beside its predecessor": (40, 100, [KEPT_A, B], ("b",)),
    "what takes nothing is no help, and stays": (50, 100, [Held("z", 0, 0.5), A, C], ("a",)),
}


@pytest.mark.parametrize(("needed", "budget", "held", "evict"), ADMITTED.values(), ids=ADMITTED.keys())
def test_admitted(needed: int, budget: int, held: list[Held], evict: tuple[str, ...]) -> None:
    assert admit("x", needed, budget, held) == Admitted(evict)


REFUSED = {
    "larger than the budget": (
        101,
        100,
        [A],
        "x: it needs 101 bytes (101 B), the budget is 100 bytes (100 B) and 40 bytes",
    ),
    "no room beside its predecessor": (61, 100, [KEPT_A, B], "70 bytes (70 B) are in use, 40 bytes (40 B) of it by a"),
}


@pytest.mark.parametrize(("needed", "budget", "held", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_with_the_numbers(needed: int, budget: int, held: list[Held], reason: str) -> None:
    decision = admit("x", needed, budget, held)
    assert isinstance(decision, Refused)
    assert reason in decision.reason


def test_whatever_is_held_it_fits_and_nothing_goes_in_vain() -> None:
    numbers = random.Random(7)
    for _ in range(2000):
        held = [
            Held(str(at), numbers.randrange(50), numbers.random(), numbers.random() < 0.3, numbers.random() < 0.2)
            for at in range(numbers.randrange(8))
        ]
        needed, budget = numbers.randrange(1, 150), numbers.randrange(1, 200)
        decision = admit("x", needed, budget, held)
        sizes = {model.key: model.bytes for model in held}
        kept = {model.key for model in held if model.kept}
        if isinstance(decision, Refused):
            assert sum(sizes[key] for key in kept) + needed > budget
            continue
        assert not kept & set(decision.evict)
        left = sum(sizes.values()) + needed - sum(sizes[key] for key in decision.evict)
        assert left <= budget or sum(sizes.values()) + needed <= budget
        assert all(left + sizes[key] > budget for key in decision.evict), "each one that goes must go"
