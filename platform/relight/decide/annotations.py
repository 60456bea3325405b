"""The annotations of a revision that steer its scaling: what they are called, what they may hold.

Messages are worded as Knative's webhook words them (``invalid value: x``, ``expected 6s <= 1s <= 1h0m0s``), paths are
written as it writes them, so that whoever knows its refusals recognises these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from relight.base.errors import Problem
from relight.base.units import format_duration
from relight.decide.defaults import (
    CLASS_HPA,
    CLASS_KPA,
    INT32_MAX,
    PANIC_THRESHOLD_MAX,
    PANIC_THRESHOLD_MIN,
    PERCENT_MAX,
    PERCENT_MIN,
    TARGET_MIN,
    WINDOW_MAX,
    WINDOW_MIN,
    ClusterDefaults,
    burst_capacity_ok,
    duration,
    integer,
    number,
    whole,
)

DOMAIN = "autoscaling.knative.dev"
PROGRESS_DEADLINE = "serving.knative.dev/progress-deadline"
COUNT_STARTING = "relight.dev/count-starting"
"""``"true"``: replicas that are starting count as capacity when panic is judged."""
METRICS = ("concurrency", "rps")
ALGORITHMS = ("linear", "weighted-exponential", "weightedExponential")

_SPELLINGS = {
    "class": (),
    "metric": (),
    "target": (),
    "window": (),
    "activation-scale": (),
    "min-scale": ("minScale",),
    "max-scale": ("maxScale",),
    "initial-scale": ("initialScale",),
    "scale-down-delay": ("scaleDownDelay",),
    "metric-aggregation-algorithm": ("metricAggregationAlgorithm",),
    "scale-to-zero-pod-retention-period": ("scaleToZeroPodRetentionPeriod",),
    "target-utilization-percentage": ("targetUtilizationPercentage",),
    "target-burst-capacity": ("targetBurstCapacity",),
    "panic-window-percentage": ("panicWindowPercentage",),
    "panic-threshold-percentage": ("panicThresholdPercentage",),
}


def find(annotations: Mapping[str, str], name: str) -> tuple[str, str] | None:
    """The full key and value of an annotation such as ``min-scale``; today's spelling wins over the old one."""
    for spelling in (name, *_SPELLINGS[name]):
        key = f"{DOMAIN}/{spelling}"
        if key in annotations:
            return key, annotations[key]
    return None


def validate_annotations(
    annotations: Mapping[str, str], defaults: ClusterDefaults | None = None, *, at: str = "metadata.annotations"
) -> list[Problem]:
    """Everything that is wrong, by path (``<at>.autoscaling.knative.dev/min-scale``); empty where all is well."""
    return _Check(annotations, defaults or ClusterDefaults(), at).run()


class _Check:
    """One pass over the annotations of one object."""

    def __init__(self, annotations: Mapping[str, str], defaults: ClusterDefaults, at: str) -> None:
        self.annotations = annotations
        self.defaults = defaults
        self.at = at
        self.problems: list[Problem] = []
        found = find(annotations, "class")
        self.class_name = found[1] if found else defaults.pod_autoscaler_class

    def run(self) -> list[Problem]:
        if self.class_name.endswith(DOMAIN) and self.class_name not in (CLASS_KPA, CLASS_HPA):
            self.invalid(f"{DOMAIN}/class", self.class_name)
        self.scales()
        self.bounded("panic-window-percentage", number, PERCENT_MIN, PERCENT_MAX)
        self.bounded("panic-threshold-percentage", number, PANIC_THRESHOLD_MIN, PANIC_THRESHOLD_MAX)
        self.bounded("target-utilization-percentage", number, PERCENT_MIN, PERCENT_MAX)
        self.target()
        self.burst_capacity()
        self.bounded("window", duration, WINDOW_MIN, WINDOW_MAX, format_duration, seconds=True)
        self.bounded("scale-to-zero-pod-retention-period", duration, 0, WINDOW_MAX, format_duration)
        self.bounded("scale-down-delay", duration, 0, WINDOW_MAX, format_duration, seconds=True)
        self.metric()
        self.initial_scale()
        self.progress_deadline()
        self.count_starting()
        return self.problems

    def add(self, message: str, *keys: str) -> None:
        self.problems.append(Problem(", ".join(f"{self.at}.{key}" for key in keys), message))

    def invalid(self, key: str, value: str) -> None:
        self.add(f"invalid value: {value}", key)

    def bounded(
        self,
        name: str,
        parse: Callable[[str], float],
        low: float,
        high: float,
        show: Callable[[float], str] = "{:g}".format,
        *,
        seconds: bool = False,
    ) -> None:
        found = find(self.annotations, name)
        if not found:
            return
        key, text = found
        try:
            value = parse(text)
        except ValueError:
            return self.invalid(key, text)
        if not low <= value <= high:
            self.add(f"expected {show(low)} <= {text} <= {show(high)}", key)
        elif seconds and not whole(value):
            self.add("must be specified with at most second precision", key)

    def count(self, name: str) -> int:
        """A number of replicas, 0 where there is none or it is wrong."""
        found = find(self.annotations, name)
        if not found:
            return 0
        key, text = found
        try:
            value = integer(text)
        except ValueError:
            if text.isascii() and text.lstrip("+-").isdecimal():
                self.add(f"expected 0 <= {text} <= {INT32_MAX}", key)
            else:
                self.invalid(key, text)
            return 0
        if value < 0:
            self.add(f"expected 0 <= {text} <= {INT32_MAX}", key)
            return 0
        return value

    def scales(self) -> None:
        low, high = self.count("min-scale"), self.count("max-scale")
        key_low, key_high = f"{DOMAIN}/min-scale", f"{DOMAIN}/max-scale"
        if high and high < low:
            self.add(f"max-scale={high} is less than min-scale={low}", key_high, key_low)
        limit, found = self.defaults.max_scale_limit, find(self.annotations, "max-scale")
        if limit and found and high > limit:
            self.add(f"expected 1 <= {high} <= {limit}", found[0])
        elif limit and found and found[1].strip("+-0") == "" and high == 0:
            self.add(f"max-scale=0 (unlimited), must be less than {limit}", found[0])
        found = find(self.annotations, "activation-scale")
        if not found:
            return
        key, text = found
        try:
            value = integer(text)
        except ValueError:
            return self.invalid(key, text)
        if value < low:
            self.add(f"min-scale={low} is greater than activation-scale={value}", key)
        elif high and high < value:
            self.add(f"max-scale={high} is less than activation-scale={value}", key)
        elif value < 2:
            self.add(f"activation-scale={value} must be greater than 1", key)

    def target(self) -> None:
        found = find(self.annotations, "target")
        if not found:
            return
        try:
            value = number(found[1])
        except ValueError:
            return self.invalid(*found)
        if value < TARGET_MIN:
            self.add(f"target {found[1]} should be at least {TARGET_MIN:g}", found[0])

    def burst_capacity(self) -> None:
        found = find(self.annotations, "target-burst-capacity")
        if not found:
            return
        try:
            ok = burst_capacity_ok(number(found[1]))
        except ValueError:
            ok = False
        if not ok:
            self.invalid(*found)

    def metric(self) -> None:
        """Other autoscalers than Knative's own may know metrics and algorithms of their own."""
        found = find(self.annotations, "metric")
        if found and (
            (self.class_name == CLASS_KPA and found[1] not in METRICS)
            or (self.class_name == CLASS_HPA and found[1] == "")
        ):
            self.invalid(*found)
        found = find(self.annotations, "metric-aggregation-algorithm")
        if found and self.class_name == CLASS_KPA and found[1] not in ("", *ALGORITHMS):
            self.invalid(*found)

    def initial_scale(self) -> None:
        found = find(self.annotations, "initial-scale")
        if not found:
            return
        key, text = found
        try:
            value = integer(text)
        except ValueError:
            return self.invalid(key, text)
        if value < 0:
            self.add(f"invalid value: {text}, must be greater than 0", key)
        elif value == 0 and not self.defaults.allow_zero_initial_scale:
            self.add("invalid value: 0, initial-scale=0 is not allowed by the cluster", key)

    def progress_deadline(self) -> None:
        text = self.annotations.get(PROGRESS_DEADLINE)
        if text is None:
            return
        try:
            value = duration(text)
        except ValueError:
            return self.invalid(PROGRESS_DEADLINE, text)
        if value < 1 or not whole(value):
            self.add("progress-deadline must be at least 1s, in whole seconds", PROGRESS_DEADLINE)

    def count_starting(self) -> None:
        text = self.annotations.get(COUNT_STARTING)
        if text is not None and text not in ("true", "false"):
            self.add(f'expected "true" or "false", got {text!r}', COUNT_STARTING)
