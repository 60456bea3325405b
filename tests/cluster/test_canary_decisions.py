"""When a canary goes on, when it is taken back, and why: decisions in a table, and a policy's mistakes."""

from __future__ import annotations

from typing import Any

import pytest

from relight.base.errors import BadInput
from relight.decide.canary import Policy, Sample, decide, lower_bound, read_policy

POLICY = Policy(steps=(10, 50), interval=60, min_requests=50, patience=600, error_rate=0.01, latency=1.0)
FAST = ((0.1, 95.0), (0.5, 100.0), (1.0, 100.0), (float("inf"), 100.0))
"""p95 is 100 ms."""
SLOWER = ((0.1, 50.0), (0.5, 100.0), (1.0, 100.0), (float("inf"), 100.0))
"""p95 is 460 ms: within the SLO, and more than 1.3 times FAST's."""
SLOW = ((0.1, 0.0), (0.5, 10.0), (1.0, 50.0), (float("inf"), 100.0))
"""p95 is over the last bound, so at least 1 s; told as 1 s, for a histogram knows no more."""


def sample(requests: int, failures: int = 0, buckets: Any = FAST) -> Sample:
    return Sample(requests, failures, buckets)


ROWS = [
    (
        "enough, well, and time is up",
        10,
        sample(100),
        sample(900),
        60,
        "step",
        50,
        "0 of 100 failed, p95 100 ms at 10 %",
    ),
    ("well at the last step", 50, sample(100), sample(100), 60, "promote", 100, "at 50 %"),
    ("a share that is no step goes to the next", 20, sample(100), sample(100), 60, "step", 50, "at 20 %"),
    ("enough but not long enough", 10, sample(100), sample(900), 59, "wait", 10, "100 of 50 requests, 59 s"),
    ("long enough but not enough", 10, sample(49), sample(900), 599, "wait", 10, "49 of 50 requests"),
    ("nobody calls", 10, sample(3), sample(20), 600, "rollback", 0, "3 requests in 600 s, 50 were wanted"),
    ("five of five failed: known at once", 10, sample(5, 5), sample(50), 10, "rollback", 0, "5 of 5 requests failed"),
    ("two of two may be a cold start's", 10, sample(2, 2), sample(50), 10, "wait", 10, "2 of 50 requests"),
    ("one of a hundred may be chance", 10, sample(100, 1), sample(900), 60, "step", 50, "1 of 100 failed"),
    ("five of a hundred are too many", 10, sample(100, 5), sample(900), 60, "rollback", 0, "1.0% is allowed"),
    ("the old one fails as much", 10, sample(100, 5), sample(900, 45), 60, "step", 50, "5 of 100"),
    ("much worse than a bad old one", 10, sample(100, 30), sample(900, 45), 60, "rollback", 0, "30 of 100"),
    ("slower than the SLO", 10, sample(100, 0, SLOW), sample(100), 60, "rollback", 0, "more than 1.3 times"),
    ("slower than the old one", 10, sample(100, 0, SLOWER), sample(100), 60, "rollback", 0, "p95 is 460 ms, more than"),
    ("as slow as the old one", 10, sample(100, 0, SLOWER), sample(100, 0, SLOWER), 60, "step", 50, "p95 460 ms"),
    ("slow, but of few requests", 10, sample(9, 0, SLOW), sample(100), 60, "wait", 10, "9 of 50"),
    ("an old one that hardly anybody calls is no measure", 10, sample(100, 0, SLOWER), sample(5), 60, "step", 50, ""),
    ("no durations are known", 10, sample(100, 0, ()), sample(100), 60, "step", 50, "0 of 100 failed at 10 %"),
]


@pytest.mark.parametrize(
    ("percent", "canary", "stable", "seconds", "verb", "then", "says"),
    [row[1:] for row in ROWS],
    ids=[r[0] for r in ROWS],
)
def test_decisions(
    percent: int, canary: Sample, stable: Sample, seconds: float, verb: str, then: int, says: str
) -> None:
    decision = decide(POLICY, percent, canary, stable, seconds)
    assert (decision.verb, decision.percent) == (verb, then), decision.reason
    assert says in decision.reason


def test_a_bound_of_the_slo_in_the_middle_of_a_bucket() -> None:
    policy = Policy(latency=0.4, min_requests=50, interval=60)
    decision = decide(policy, 10, sample(100, 0, SLOWER), sample(0, 0, ()), 60)
    assert (decision.verb, decision.reason) == ("rollback", "p95 is 460 ms, and the SLO allows 400 ms")


@pytest.mark.parametrize(
    ("failures", "requests", "bound"), [(0, 0, 0.0), (0, 100, 0.0), (1, 1, 0.2065), (5, 100, 0.0215), (50, 100, 0.4038)]
)
def test_wilsons_lower_bound(failures: int, requests: int, bound: float) -> None:
    assert lower_bound(failures, requests) == pytest.approx(bound, abs=1e-4)


def test_a_policy_from_relight_yaml() -> None:
    value = {
        "slo": {"errorRate": 0.02, "latency": "500ms", "quantile": 0.99},
        "canary": {"steps": [5, 50], "interval": "2m", "patience": 1800, "minRequests": 10, "latencyRatio": 2},
        "keepWarm": {"anything": "of others"},
    }
    assert read_policy(value) == Policy((5, 50), 120.0, 10, 1800.0, 0.02, 0.5, 0.99, 2.0)
    assert read_policy({}) == Policy()


WRONG = [
    ("descending", {"canary": {"steps": [50, 10]}}, "policy.canary.steps"),
    ("all of it is no step", {"canary": {"steps": [100]}}, "policy.canary.steps"),
    ("no step", {"canary": {"steps": []}}, "policy.canary.steps"),
    ("no duration", {"canary": {"interval": "soon"}}, "policy.canary.interval"),
    ("percent for a share", {"slo": {"errorRate": 5}}, "policy.slo.errorRate"),
    ("true for a number", {"canary": {"minRequests": True}}, "policy.canary.minRequests"),
    ("faster than the old one", {"canary": {"latencyRatio": 0.5}}, "policy.canary.latencyRatio"),
    ("a typo", {"canary": {"step": [1]}}, "policy.canary.step"),
    ("no mapping", {"slo": [1]}, "policy.slo"),
]


@pytest.mark.parametrize(("value", "path"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_mistakes_of_a_policy(value: dict[str, Any], path: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_policy(value)
    assert [problem.path for problem in caught.value.problems] == [path]
