"""What ``config-autoscaler`` decides for all revisions: its keys, its defaults, its bounds.

Names, defaults and bounds are those of the ConfigMap that Knative Serving ships, so that a cluster's own ConfigMap can
be read here and a laptop behaves like the cluster.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from relight.base.errors import BadInput, Problem
from relight.base.units import format_duration, parse_duration

TARGET_MIN = 0.01
"""The least load that one replica can be aimed at; it keeps the division by the target finite."""
WINDOW_MIN = 6.0
WINDOW_MAX = 3600.0
PERCENT_MIN = 1.0
PERCENT_MAX = 100.0
PANIC_THRESHOLD_MIN = 110.0
PANIC_THRESHOLD_MAX = 1000.0
INT32_MAX = 2**31 - 1
CLASS_KPA = "kpa.autoscaling.knative.dev"
CLASS_HPA = "hpa.autoscaling.knative.dev"

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def integer(text: str) -> int:
    """An integer as Go reads one (no spaces, no underscores, ASCII digits), within 32 bits."""
    if not _INTEGER.fullmatch(text) or len(text) > 11 or not -INT32_MAX - 1 <= int(text) <= INT32_MAX:
        raise ValueError(f"expected a whole number of at most {INT32_MAX}, got {text!r}")
    return int(text)


def number(text: str) -> float:
    """A finite decimal number. Go would let NaN and Inf through, and every comparison with a bound after them."""
    if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        raise ValueError(f"expected a number, got {text!r}")
    return float(text)


def duration(text: str) -> float:
    """Seconds of a Go duration."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ValueError(f"expected a duration such as 30s or 1m30s, got {text!r}") from error


def boolean(text: str) -> bool:
    """Go's ``strconv.ParseBool``; what it cannot read is false, as Knative reads its ConfigMaps."""
    return text in ("1", "t", "T", "true", "TRUE", "True")


@dataclass(frozen=True)
class ClusterDefaults:
    """The cluster's settings. Durations in seconds, rates as factors, utilisation as a fraction of one."""

    pod_autoscaler_class: str = CLASS_KPA
    container_concurrency_target_default: float = 100.0
    """Requests at once that a replica is taken to bear where the revision sets no limit."""
    container_concurrency_target_fraction: float = 0.7
    """How full replicas are meant to be (key ``container-concurrency-target-percentage``): room for what arrives while
    another starts. For a replica that takes one request at a time it means three replicas for two requests."""
    rps_target_fraction: float = 0.7
    """The same for the metric ``rps``. Not a key of the ConfigMap."""
    requests_per_second_target_default: float = 200.0
    target_burst_capacity: float = 211.0
    """Requests beyond the current load that must fit before traffic goes past the activator; 0: the activator is in the
    path only at zero replicas; -1: always."""
    stable_window: float = 60.0
    panic_window_percentage: float = 10.0
    """Length of the panic window, in percent of the stable one."""
    panic_threshold_percentage: float = 200.0
    """Panic begins when the panic window wants this many percent of what is ready."""
    max_scale_up_rate: float = 1000.0
    """At most this many times the ready replicas per decision."""
    max_scale_down_rate: float = 2.0
    """At least the ready replicas divided by this per decision."""
    enable_scale_to_zero: bool = True
    scale_to_zero_grace_period: float = 30.0
    """How long the last replica stays once the revision is inactive: what a cluster takes to route to the activator."""
    scale_to_zero_pod_retention_period: float = 0.0
    """At least so long stays the last replica, whatever the routing; 0: no such rule."""
    scale_down_delay: float = 0.0
    """A lower number of replicas must have been wanted for this long; 0: at once."""
    initial_scale: int = 1
    """Replicas that a new revision must have had once before it counts as working."""
    allow_zero_initial_scale: bool = False
    min_scale: int = 0
    max_scale: int = 0
    """0: no limit."""
    max_scale_limit: int = 0
    """What a revision may ask for as its max-scale; 0: no limit."""
    activator_capacity: float = 100.0
    """Requests at once that one activator can hold."""
    progress_deadline: float = 600.0
    """How long a replica may take to become ready (from ``config-deployment``)."""

    @classmethod
    def from_config(cls, data: Mapping[str, str]) -> ClusterDefaults:
        """Read the ``data`` of a ``config-autoscaler``; keys that are not known (``_example``) are ignored.

        BadInput names every wrong key at once.
        """
        problems: list[Problem] = []
        values: dict[str, object] = {}
        for field in dataclasses.fields(cls):
            key = _KEYS.get(field.name, field.name.replace("_", "-"))
            if key is None or key not in data:
                continue
            try:
                values[field.name] = _parser(field.name, field.default)(data[key])
            except ValueError as error:
                problems.append(Problem(key, str(error)))
        fraction = values.get("container_concurrency_target_fraction")
        if isinstance(fraction, float) and fraction > 1.0:  # up to 1 it is a fraction already: an old spelling
            values["container_concurrency_target_fraction"] = fraction / 100.0
        defaults = dataclasses.replace(cls(), **values)  # type: ignore[arg-type]
        problems += defaults.problems()
        if problems:
            raise BadInput.of(problems)
        return defaults

    def problems(self) -> list[Problem]:
        """What is out of bounds, by the ConfigMap's key."""
        lowest_max = 1 if self.max_scale_limit > 0 else 0
        highest_max = self.max_scale_limit if self.max_scale_limit > 0 else INT32_MAX
        fraction = self.container_concurrency_target_fraction
        concurrency = fraction * self.container_concurrency_target_default
        seconds = "in whole seconds"
        window = f"{format_duration(WINDOW_MIN)} to {format_duration(WINDOW_MAX)}, {seconds}"
        rules = [
            (
                "container-concurrency-target-percentage",
                0 < fraction <= 1,
                "(0, 100]",
            ),
            ("container-concurrency-target-default", concurrency >= TARGET_MIN, f"a target of at least {TARGET_MIN}"),
            (
                "requests-per-second-target-default",
                self.requests_per_second_target_default >= TARGET_MIN,
                f"at least {TARGET_MIN}",
            ),
            ("target-burst-capacity", burst_capacity_ok(self.target_burst_capacity), "-1, 0 or more"),
            ("stable-window", WINDOW_MIN <= self.stable_window <= WINDOW_MAX and whole(self.stable_window), window),
            ("panic-window-percentage", PERCENT_MIN <= self.panic_window_percentage <= PERCENT_MAX, "1 to 100"),
            (
                "panic-threshold-percentage",
                PANIC_THRESHOLD_MIN <= self.panic_threshold_percentage <= PANIC_THRESHOLD_MAX,
                "110 to 1000",
            ),
            ("max-scale-up-rate", self.max_scale_up_rate > 1, "more than 1"),
            ("max-scale-down-rate", self.max_scale_down_rate > 1, "more than 1"),
            ("scale-to-zero-grace-period", self.scale_to_zero_grace_period >= WINDOW_MIN, "at least 6s"),
            (
                "scale-to-zero-pod-retention-period",
                0 <= self.scale_to_zero_pod_retention_period <= WINDOW_MAX,
                "0s to 1h0m0s",
            ),
            (
                "scale-down-delay",
                0 <= self.scale_down_delay <= WINDOW_MAX and whole(self.scale_down_delay),
                f"0s to 1h0m0s, {seconds}",
            ),
            (
                "initial-scale",
                self.initial_scale >= (0 if self.allow_zero_initial_scale else 1),
                "at least 1 (0 where allow-zero-initial-scale is true)",
            ),
            ("min-scale", self.min_scale >= 0, "0 or more"),
            ("max-scale", lowest_max <= self.max_scale <= highest_max, f"{lowest_max} to {highest_max}"),
            ("max-scale", self.max_scale == 0 or self.max_scale >= self.min_scale, "at least min-scale"),
            ("max-scale-limit", self.max_scale_limit >= 0, "0 or more"),
            ("activator-capacity", self.activator_capacity >= 1, "at least 1"),
        ]
        return [Problem(key, f"expected {expected}") for key, ok, expected in rules if not ok]


_KEYS: dict[str, str | None] = {
    "container_concurrency_target_fraction": "container-concurrency-target-percentage",
    "rps_target_fraction": None,
}
_DURATIONS = frozenset(
    (
        "stable_window",
        "scale_to_zero_grace_period",
        "scale_to_zero_pod_retention_period",
        "scale_down_delay",
        "progress_deadline",
    )
)


def _parser(name: str, default: object) -> Callable[[str], object]:
    if name in _DURATIONS:
        return duration
    if isinstance(default, bool):
        return boolean
    if isinstance(default, int):
        return integer
    return number if isinstance(default, float) else str


def whole(seconds: float) -> bool:
    """Without a fraction of a second: windows are counted in buckets of one."""
    return seconds == math.floor(seconds)


def burst_capacity_ok(value: float) -> bool:
    return value >= 0 or value == -1
