"""The table of a function's life."""

from __future__ import annotations

from itertools import product

import pytest

from relight.runtime.lifecycle import MOVES, Lifecycle, State

WAYS = {
    State.CREATED: [],
    State.LOADING: [State.LOADING],
    State.READY: [State.LOADING, State.READY],
    State.FAILED: [State.LOADING, State.FAILED],
    State.DRAINING: [State.DRAINING],
    State.STOPPED: [State.DRAINING, State.STOPPED],
}


@pytest.mark.parametrize(("begin", "end"), list(product(State, State)), ids=lambda state: state.value)
def test_moves(begin: State, end: State) -> None:
    life = Lifecycle()
    for state in WAYS[begin]:
        assert life.move(state, f"to {state}")
    heard: list[tuple[State, str]] = []
    life.listen(lambda state, reason: heard.append((state, reason)))
    legal = end in MOVES[begin]
    before = (life.state, life.reason)
    assert life.move(end, "why") is legal
    assert (life.state, life.reason) == ((end, "why") if legal else before)
    assert heard == ([(end, "why")] if legal else [])


def test_nothing_leads_out_of_the_end_and_every_state_can_stop() -> None:
    assert MOVES[State.STOPPED] == frozenset()
    assert all(State.DRAINING in MOVES[state] for state in State if state not in (State.DRAINING, State.STOPPED))
