"""Stories over time: decisions, bounds and windows together, two seconds a step, no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from relight.decide.annotations import DOMAIN
from relight.decide.defaults import ClusterDefaults
from relight.decide.last_step import Activity, ScaleTarget, Step, last_step, proxied
from relight.decide.scaling import TICK, Observation, RevisionScaling, decide, initial_state
from relight.decide.windows import LinearAverage


@dataclass
class World:
    """One revision under a load that is a function of time; a replica is ready ``start_time`` s after it was wanted."""

    spec: RevisionScaling
    load: Callable[[float], float]
    start_time: float = 0.0
    slots: int | None = None
    now: float = 0.0
    replicas: list[float] = field(default_factory=list)
    """When each replica becomes (or became) ready."""
    activity: Activity = Activity.INACTIVE
    since: float = 0.0
    proxy_since: float | None = 0.0
    initialized: bool = True
    most: int = 0

    def __post_init__(self) -> None:
        self.stable = LinearAverage(self.spec.stable_window)
        self.panic = LinearAverage(self.spec.panic_window)
        self.state = initial_state(len(self.replicas), self.now)
        self.desired = -1

    @property
    def ready(self) -> int:
        return sum(at <= self.now for at in self.replicas)

    def tick(self) -> Step:
        for second in (self.now - 1, self.now):
            if second >= 0:
                self.stable.record(second, self.load(second))
                self.panic.record(second, self.load(second))
        ready = self.ready
        seen = Observation(
            ready, self.stable.average(self.now), self.panic.average(self.now), starting=len(self.replicas) - ready
        )
        decision, self.state = decide(self.spec, self.state, seen, self.now)
        target = ScaleTarget(
            replicas=len(self.replicas),
            ready=ready,
            activity=self.activity,
            since=self.since,
            initialized=self.initialized,
            proxy_since=self.proxy_since,
            slots=self.slots,
        )
        step = last_step(self.spec, target, decision.desired if decision.valid else -1, self.now)
        if step.scale is not None:
            self.replicas = self.replicas[: step.scale]
            self.replicas += [self.now + self.start_time] * (step.scale - len(self.replicas))
        if step.activity is not self.activity:
            self.activity, self.since = step.activity, self.now
        self.initialized = step.initialized
        if not proxied(step.want, decision.excess_burst_capacity, self.activity):
            self.proxy_since = None
        elif self.proxy_since is None:
            self.proxy_since = self.now
        self.desired = decision.desired
        self.most = max(self.most, len(self.replicas))
        self.now += TICK
        return step

    def until(self, condition: Callable[[World], bool], limit: float = 1000.0) -> float:
        """Tick until it holds; the time of the tick at which it did."""
        end = self.now + limit
        while self.now < end:
            self.tick()
            if condition(self):
                return self.now - TICK
        raise AssertionError(f"not within {limit} s: {len(self.replicas)} replicas, {self.activity}")


def gone(world: World) -> bool:
    return not world.replicas


@pytest.mark.parametrize(
    ("burst_capacity", "low", "high"),
    [
        pytest.param(211, 60, 66, id="activator in the path already: the fast path"),
        pytest.param(0, 88, 98, id="replicas serve directly: the grace period on top"),
    ],
)
def test_idle_time_before_zero(burst_capacity: float, low: float, high: float) -> None:
    spec = RevisionScaling(target_burst_capacity=burst_capacity)
    world = World(spec, lambda t: 1.0 if t < 100 else 0.0)
    world.until(lambda w: w.ready == 1 and w.activity is Activity.ACTIVE, 10)
    idle = world.until(gone) - 100
    assert low <= idle <= high


def test_down_from_ten_halves_at_each_step() -> None:
    world = World(RevisionScaling(), lambda t: 0.0, replicas=[0.0] * 10, activity=Activity.ACTIVE)
    seen = [10]
    while world.replicas:
        world.tick()
        if len(world.replicas) != seen[-1]:
            seen.append(len(world.replicas))
        assert world.now < 300
    assert seen == [10, 5, 2, 1, 0]


def test_a_restarted_autoscaler_takes_nothing_away_for_a_stable_window() -> None:
    world = World(RevisionScaling(), lambda t: 0.0, replicas=[0.0] * 10, activity=Activity.ACTIVE)
    fell = world.until(lambda w: len(w.replicas) < 10)
    assert 60 < fell <= 64


def test_no_data_is_not_no_load() -> None:
    window = LinearAverage(60)
    assert window.empty(0)
    window.record(0, 5)
    assert not window.empty(60)
    assert window.empty(61)
    spec, state = RevisionScaling(), initial_state(3, 0)
    decision, after = decide(spec, state, Observation(3, None, None), 5)
    assert not decision.valid
    assert after == state
    target = ScaleTarget(replicas=3, ready=3, activity=Activity.ACTIVE, since=-1000)
    assert last_step(spec, target, -1, 5).scale is None


def test_a_broken_function_ends_at_zero_and_stays_there() -> None:
    spec = RevisionScaling(progress_deadline=20)
    world = World(spec, lambda t: 1.0 if t < 10 else 0.0, start_time=1e9)
    world.until(lambda w: len(w.replicas) == 1, 4)
    assert world.activity is Activity.ACTIVATING
    given_up = world.until(gone)
    assert 50 < given_up <= 80
    assert world.activity is Activity.INACTIVE
    for _ in range(100):
        world.tick()
    assert not world.replicas


def test_scale_down_delay_keeps_the_number_over_a_pause() -> None:
    spec = RevisionScaling(target=1, scale_down_delay=30, stable_window=6, panic_window=1)
    world = World(spec, lambda t: 4.0 if t < 20 or 40 <= t < 60 else 0.0)
    world.until(lambda w: len(w.replicas) == 4, 10)
    while world.now < 60:
        world.tick()
        assert len(world.replicas) == 4, world.now


def test_a_revision_without_a_route_goes_down_at_once() -> None:
    spec, state = RevisionScaling(scale_down_delay=60), initial_state(1, 0)
    for reachable, want in ((True, 10), (False, 0)):
        decision, _ = decide(spec, state, Observation(20, 0.0, 0.0, reachable=reachable), 10)
        assert decision.desired == want


def test_min_scale_is_let_go_when_no_route_leads_there() -> None:
    spec = RevisionScaling(min_scale=2)
    at = ScaleTarget(replicas=2, ready=2, activity=Activity.ACTIVE, since=0)
    assert last_step(spec, at, 0, 1000).want == 2
    alone = ScaleTarget(replicas=2, ready=2, activity=Activity.INACTIVE, since=0, reachable=False)
    assert last_step(spec, alone, 0, 1000).scale == 0


def test_retention_is_not_for_a_revision_without_a_route() -> None:
    spec = RevisionScaling(retention=3600)
    kept = ScaleTarget(replicas=1, ready=1, activity=Activity.INACTIVE, since=0)
    step = last_step(spec, kept, 0, 100)
    assert (step.scale, step.requeue_after) == (None, 3500)
    alone = ScaleTarget(replicas=1, ready=1, activity=Activity.INACTIVE, since=0, reachable=False)
    assert last_step(spec, alone, 0, 100).scale == 0


def test_max_scale_wins_over_an_initial_scale_above_it() -> None:
    spec = RevisionScaling(initial_scale=5, max_scale=3)
    new = ScaleTarget(replicas=0, ready=0, activity=Activity.ACTIVATING, since=0, initialized=False)
    assert [last_step(spec, new, desired, 1).want for desired in (1, 5, 9)] == [5, 3, 3]


# A model that takes one request at a time and loads for a minute; four callers at once, from zero; room for two.
GPU_MODEL = {
    f"{DOMAIN}/target-utilization-percentage": "100",
    "relight.dev/count-starting": "true",
}


def test_one_request_at_a_time_and_two_gpus_never_leaves_a_replica_pending() -> None:
    spec = RevisionScaling.from_annotations(GPU_MODEL, 1, ClusterDefaults())
    world = World(spec, lambda t: 4.0, start_time=60, slots=2)
    world.until(lambda w: w.now > 130)
    assert world.most == 2
    assert world.ready == 2
    assert world.desired == 4  # it still wants four: the other two requests queue


def test_the_same_under_knative_s_own_rules_asks_for_six() -> None:
    """What the two settings are for; it also shows that the test above can fail."""
    world = World(RevisionScaling.from_annotations({}, 1, ClusterDefaults()), lambda t: 4.0, start_time=60)
    world.until(lambda w: w.now > 20)
    assert world.most == 6


def test_starting_replicas_end_the_panic_that_a_long_load_would_keep_alive() -> None:
    def panic_since(counted: bool) -> float | None:
        spec = RevisionScaling(target=1, count_starting=counted)
        world = World(spec, lambda t: 4.0, start_time=100)
        world.until(lambda w: w.now > 50)
        return world.state.panic_since

    assert panic_since(False) == 50
    assert panic_since(True) == 0


def test_slots_that_are_taken_away_cost_no_running_replica() -> None:
    at = ScaleTarget(replicas=3, ready=3, activity=Activity.ACTIVE, since=0, slots=1)
    assert last_step(RevisionScaling(), at, 5, 10).scale is None
    assert last_step(RevisionScaling(), at, 2, 10).scale == 2
