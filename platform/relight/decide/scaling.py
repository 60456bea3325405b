"""How many replicas a revision should have: Knative's pod autoscaler (KPA), as a function.

Every two seconds (and at once when a request arrives at zero) the autoscaler looks at two averages of the load, one
over a long window (*stable*, a minute) and one over a short one (*panic*, a tenth of it), and divides them by the load
that one replica is aimed at. The stable one decides, until the short one wants twice of what is ready. Then it is a
panic: the larger of both counts, and the number may only grow until a whole stable window has passed without another
such moment. Per decision the number may grow and shrink only by a factor of what is *ready*.

``decide`` takes the state and returns the next one. Where two readings are possible the comments say which one Knative
has. What comes after the decision (bounds, zero) is in ``last_step``.

One thing is better than Knative's, and off unless asked for: with ``RevisionScaling.count_starting`` replicas that are
still loading count when panic is judged. Else a model that loads for a minute keeps a panic alive all by itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from relight.decide.annotations import COUNT_STARTING, PROGRESS_DEADLINE, find
from relight.decide.defaults import CLASS_HPA, TARGET_MIN, ClusterDefaults, duration, integer, number
from relight.decide.windows import MaxWindow

TICK = 2.0
"""Seconds between two decisions; also the bucket of the scale-down delay."""
HPA_TARGET = 80.0
"""Percent of the requested CPU that ``class: hpa`` aims at where no annotation says so."""
BUCKET = 1.0
"""Seconds that load is summed over before it enters an average."""


@dataclass(frozen=True)
class RevisionScaling:
    """All that steers the scaling of one revision: the cluster's defaults with the revision's annotations over them."""

    target: float = 70.0
    """Load that one replica is aimed at."""
    total: float = 100.0
    """Load that one replica can bear."""
    metric: str = "concurrency"
    class_name: str = "kpa.autoscaling.knative.dev"
    aggregation: str = "linear"
    stable_window: float = 60.0
    panic_window: float = 6.0
    panic_threshold: float = 2.0
    """Panic begins where the short window wants this many times of what is ready; inclusive."""
    max_scale_up_rate: float = 1000.0
    max_scale_down_rate: float = 2.0
    target_burst_capacity: float = 211.0
    scale_down_delay: float = 0.0
    min_scale: int = 0
    max_scale: int = 0
    initial_scale: int = 1
    activation_scale: int = 0
    """At least so many when there is any load at all; 0 and 1: no such rule."""
    enable_scale_to_zero: bool = True
    grace_period: float = 30.0
    retention: float = 0.0
    progress_deadline: float = 600.0
    activator_capacity: float = 100.0
    count_starting: bool = False
    """Replicas that are starting count as capacity when panic is judged (not Knative's; opt-in)."""

    @classmethod
    def from_annotations(
        cls,
        annotations: Mapping[str, str],
        container_concurrency: int,
        defaults: ClusterDefaults,
        *,
        count_starting: bool = False,
    ) -> RevisionScaling:
        """For annotations that ``validate_annotations`` has passed; ValueError for one that it would have refused.

        ``count_starting``: what goes where no annotation says so; True for functions that need a GPU.
        """
        given = {name: found[1] for name in _READ if (found := find(annotations, name)) is not None}
        class_name = given.get("class", defaults.pod_autoscaler_class)
        by_use = class_name == CLASS_HPA
        metric = given.get("metric", "cpu" if by_use else "concurrency")
        utilization = number(given["target-utilization-percentage"]) / 100 if _UTILIZATION in given else None
        target, total = resolve_target(
            metric=metric,
            container_concurrency=container_concurrency,
            target=number(given["target"]) if "target" in given else None,
            utilization=utilization,
            defaults=defaults,
        )
        if by_use:  # a target is what it says there, and Kubernetes' own default is 80 % of the CPU that is requested
            target = total = number(given["target"]) if "target" in given else HPA_TARGET
        stable = duration(given["window"]) if "window" in given else defaults.stable_window
        percentage = float(number(given.get("panic-window-percentage", str(defaults.panic_window_percentage))))
        threshold = number(given.get("panic-threshold-percentage", str(defaults.panic_threshold_percentage)))
        algorithm = given.get("metric-aggregation-algorithm", "linear")
        initial = integer(given.get("initial-scale", str(defaults.initial_scale)))
        if initial == 0 and not defaults.allow_zero_initial_scale:
            initial = defaults.initial_scale
        return cls(
            target=target,
            total=total,
            metric=metric,
            class_name=class_name,
            aggregation="weighted-exponential" if algorithm.startswith("weighted") else "linear",
            stable_window=stable,
            panic_window=panic_window(stable, percentage),
            panic_threshold=threshold / 100,
            max_scale_up_rate=defaults.max_scale_up_rate,
            max_scale_down_rate=defaults.max_scale_down_rate,
            target_burst_capacity=number(given.get("target-burst-capacity", str(defaults.target_burst_capacity))),
            scale_down_delay=_seconds(given, "scale-down-delay", defaults.scale_down_delay),
            min_scale=max(integer(given.get("min-scale", str(defaults.min_scale))), 1 if by_use else 0),
            max_scale=integer(given.get("max-scale", str(defaults.max_scale))),
            initial_scale=initial,
            activation_scale=integer(given.get("activation-scale", "0")),
            enable_scale_to_zero=defaults.enable_scale_to_zero,
            grace_period=defaults.scale_to_zero_grace_period,
            retention=_seconds(
                given, "scale-to-zero-pod-retention-period", defaults.scale_to_zero_pod_retention_period
            ),
            progress_deadline=(
                duration(annotations[PROGRESS_DEADLINE])
                if PROGRESS_DEADLINE in annotations
                else defaults.progress_deadline
            ),
            activator_capacity=defaults.activator_capacity,
            count_starting=annotations.get(COUNT_STARTING, str(count_starting).lower()) == "true",
        )


_UTILIZATION = "target-utilization-percentage"
_READ = (
    "class",
    "metric",
    "target",
    _UTILIZATION,
    "window",
    "panic-window-percentage",
    "panic-threshold-percentage",
    "metric-aggregation-algorithm",
    "target-burst-capacity",
    "scale-down-delay",
    "scale-to-zero-pod-retention-period",
    "min-scale",
    "max-scale",
    "initial-scale",
    "activation-scale",
)


def _seconds(given: Mapping[str, str], name: str, default: float) -> float:
    return duration(given[name]) if name in given else default


def resolve_target(
    *,
    metric: str,
    container_concurrency: int,
    target: float | None,
    utilization: float | None,
    defaults: ClusterDefaults,
) -> tuple[float, float]:
    """(load a replica is aimed at, load it can bear). A ``target`` annotation never aims above the hard limit."""
    if metric == "rps":
        total, fraction = defaults.requests_per_second_target_default, defaults.rps_target_fraction
    else:
        total = float(container_concurrency) or defaults.container_concurrency_target_default
        fraction = defaults.container_concurrency_target_fraction
    if target is not None:
        hard = metric == "concurrency" and container_concurrency != 0
        total = min(target, container_concurrency) if hard else target
    return max(TARGET_MIN, total * (fraction if utilization is None else utilization)), float(total)


def panic_window(stable: float, percentage: float) -> float:
    """Length of the short window: rounded to whole seconds (half up), one at least."""
    return max(BUCKET, float(math.floor(stable * percentage / 100 + 0.5)))


@dataclass(frozen=True)
class Observation:
    """What one decision is made from."""

    ready: int
    """Replicas that answer."""
    stable: float | None
    """Average load over the stable window; None: there is no data, which is not the same as no load."""
    panic: float | None
    """The same over the panic window."""
    reachable: bool = True
    """A route leads to the revision. Where none does, it may go down at once."""
    starting: int = 0
    """Replicas on their way; looked at only with ``count_starting``."""


@dataclass(frozen=True)
class ScalerState:
    """What a decision leaves for the next."""

    panic_since: float | None = None
    """When the panic threshold was last passed; None: no panic."""
    max_panic_pods: int = 0
    """The most that was wanted in this panic."""
    delay: MaxWindow | None = None
    """What was wanted within the scale-down delay."""


@dataclass(frozen=True)
class Decision:
    """``valid`` False means: there was nothing to decide from, keep what is there."""

    desired: int
    excess_burst_capacity: int
    valid: bool
    panic_since: float | None = None


def initial_state(ready: int | None, now: float) -> ScalerState:
    """The state of a scaler that has just come to be, with ``ready`` replicas there already (None: nobody knows).

    With more than one it begins in panic, so that a restart of the autoscaler, which knows no load yet, takes no
    replica away for a stable window.
    """
    count = ready or 0
    return ScalerState(panic_since=now if count > 1 else None, max_panic_pods=count)


def decide(spec: RevisionScaling, state: ScalerState, seen: Observation, now: float) -> tuple[Decision, ScalerState]:
    """One decision and the state for the next. ``now`` in seconds of any clock that only goes forward."""
    if seen.stable is None or seen.panic is None:
        return Decision(0, 0, valid=False, panic_since=state.panic_since), state

    ready = max(1, seen.ready)  # at zero everything is measured against one
    ceiling = math.ceil(spec.max_scale_up_rate * ready)  # ceil: a rate of 1.1 still adds one to two
    floor = math.floor(ready / spec.max_scale_down_rate) if seen.reachable else 0
    stable_pods = math.ceil(seen.stable / spec.target)
    panic_pods = math.ceil(seen.panic / spec.target)
    by_stable = min(max(stable_pods, floor), ceiling)
    by_panic = min(max(panic_pods, floor), ceiling)
    if spec.activation_scale > 1:
        by_stable = max(by_stable, spec.activation_scale) if stable_pods > 0 else by_stable
        by_panic = max(by_panic, spec.activation_scale) if panic_pods > 0 else by_panic

    capacity = max(1, seen.ready + seen.starting) if spec.count_starting else ready
    panic_since, max_panic_pods = state.panic_since, state.max_panic_pods
    if panic_pods / capacity >= spec.panic_threshold:  # the wish before it was clamped
        panic_since = now
    elif panic_since is not None and panic_since + spec.stable_window < now:
        panic_since, max_panic_pods = None, 0

    wanted = by_stable
    if panic_since is not None:
        max_panic_pods = wanted = max(by_stable, by_panic, max_panic_pods)

    delay = None
    if spec.scale_down_delay > 0:
        delay = _delay_window(spec, state.delay)
        if seen.reachable:
            delay = delay.record(now, wanted)
            wanted = delay.current

    decision = Decision(wanted, _excess(spec, seen.ready, seen.panic), True, panic_since)
    return decision, ScalerState(panic_since, max_panic_pods, delay)


def _delay_window(spec: RevisionScaling, delay: MaxWindow | None) -> MaxWindow:
    wanted = MaxWindow.over(spec.scale_down_delay, int(TICK))
    if delay is None:
        return wanted
    return delay if delay.length == wanted.length else dataclasses.replace(wanted, entries=delay.entries)


def _excess(spec: RevisionScaling, ready: int, panic: float) -> int:
    """How much more than the present load and the burst capacity fits. Counts what is really ready, which may be 0."""
    if spec.target_burst_capacity == 0:
        return 0
    if spec.target_burst_capacity < 0:
        return -1
    return math.floor(ready * spec.total - spec.target_burst_capacity - panic)


def initial_excess(spec: RevisionScaling) -> int:
    """The excess burst capacity of a revision that no decision was made for yet: as if it had its initial scale."""
    if spec.target_burst_capacity <= 0:
        return int(spec.target_burst_capacity)
    return int(spec.initial_scale * spec.total - spec.target_burst_capacity)


def same_sign(before: int, after: int) -> bool:
    """Whether a change of the excess burst capacity leaves the activator where it is (0 counts as enough)."""
    return (before >= 0) == (after >= 0)
