"""How long a revision waits after a replica failed, as walks."""

from __future__ import annotations

import pytest

from relight.local.serving.replica import Failure, Reason, Replica, State, failed

START, CRASH, LONG = (False, 0.0), (True, 1.0), (True, 61.0)
"""(was ready, for how many seconds)"""


@pytest.mark.parametrize(
    ("ends", "delays"),
    [
        pytest.param([START] * 7, [10, 20, 40, 80, 160, 300, 300], id="it-cannot-start"),
        pytest.param([CRASH] * 6, [0, 0.5, 1, 2, 4, 8], id="it-dies-of-its-requests"),
        pytest.param([CRASH] * 12, [0, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300], id="and-goes-on-dying"),
        pytest.param([LONG] * 3, [0, 0, 0], id="it-dies-now-and-then"),
        pytest.param([START, START, LONG, START], [10, 20, 0, 20], id="forgotten-once-it-has-lasted"),
        pytest.param([CRASH, START], [0, 20], id="its-replacement-cannot-start"),
    ],
)
def test_delays(ends: list[tuple[bool, float]], delays: list[float]) -> None:
    failure: Failure | None = None
    for (was_ready, lasted), delay in zip(ends, delays, strict=True):
        failure = failed(failure, Reason.CRASHED, "", was_ready=was_ready, lasted=lasted, now=100.0)
        assert failure.retry_at - 100.0 == delay


@pytest.mark.parametrize(
    ("state", "to"), [(State.READY, State.STARTING), (State.DRAINING, State.READY), (State.GONE, State.GONE)]
)
def test_moves_that_may_not_be(state: State, to: State) -> None:
    replica = Replica("p", state=state)
    with pytest.raises(AssertionError, match="no legal move"):
        replica.move(to)
    assert replica.state is state
