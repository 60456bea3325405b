"""What an annotation may hold, how it is called, and what becomes of it."""

from __future__ import annotations

import pytest

from relight.base.errors import BadInput
from relight.decide.annotations import DOMAIN, validate_annotations
from relight.decide.defaults import ClusterDefaults
from relight.decide.scaling import RevisionScaling

KPA = "kpa.autoscaling.knative.dev"


def autoscaling(**annotations: str) -> dict[str, str]:
    return {f"{DOMAIN}/{name.replace('_', '-')}": value for name, value in annotations.items()}


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("target", ["0.01", "1e2", "+7"], ["0.009", "x", "", "nan", "inf", "1_0", " 1"]),
        ("target-utilization-percentage", ["1", "100", "62.5"], ["0.9", "100.1", "x"]),
        ("window", ["6s", "1h", "1m30s"], ["5s", "1h1s", "6500ms", "60", "x", ""]),
        ("panic-window-percentage", ["1", "100"], ["0.9", "101"]),
        ("panic-threshold-percentage", ["110", "1000"], ["109", "1001"]),
        ("scale-to-zero-pod-retention-period", ["0s", "1h", "1.5s"], ["-1s", "1h1s"]),
        ("scale-down-delay", ["0", "3600s"], ["1h1s", "500ms"]),
        ("min-scale", ["0", "2147483647"], ["-1", "1.5", "2147483648", "9" * 400, "٣"]),
        ("activation-scale", ["2"], ["1", "x", "-4"]),
        ("initial-scale", ["1"], ["0", "-1", "x"]),
        ("metric", ["rps", "concurrency"], ["cpu", ""]),
        ("metric-aggregation-algorithm", ["linear", "weighted-exponential"], ["median"]),
        ("target-burst-capacity", ["-1", "0", "7.5"], ["-2", "-0.5", "x"]),
        ("class", [KPA, "hpa.autoscaling.knative.dev", "mine.example.com"], ["other.autoscaling.knative.dev"]),
    ],
)
def test_bounds(name: str, good: list[str], bad: list[str]) -> None:
    for value in good:
        assert validate_annotations({f"{DOMAIN}/{name}": value}) == [], value
    for value in bad:
        problems = validate_annotations({f"{DOMAIN}/{name}": value})
        assert [problem.path for problem in problems] == [f"metadata.annotations.{DOMAIN}/{name}"], value


def test_all_mistakes_at_once_in_knative_s_words() -> None:
    problems = validate_annotations(
        autoscaling(min_scale="5", max_scale="2", window="1s", target="x"), at="spec.template.metadata.annotations"
    )
    at = f"spec.template.metadata.annotations.{DOMAIN}"
    assert [(problem.path, problem.message) for problem in problems] == [
        (f"{at}/max-scale, {at}/min-scale", "max-scale=2 is less than min-scale=5"),
        (f"{at}/target", "invalid value: x"),
        (f"{at}/window", "expected 6s <= 1s <= 1h0m0s"),
    ]


@pytest.mark.parametrize(
    ("old", "field", "text", "value"),
    [
        ("minScale", "min_scale", "3", 3),
        ("maxScale", "max_scale", "9", 9),
        ("initialScale", "initial_scale", "2", 2),
        ("scaleDownDelay", "scale_down_delay", "30s", 30),
        ("targetBurstCapacity", "target_burst_capacity", "-1", -1),
        ("targetUtilizationPercentage", "target", "50", 50),
        ("panicWindowPercentage", "panic_window", "50", 30),
        ("panicThresholdPercentage", "panic_threshold", "150", 1.5),
        ("scaleToZeroPodRetentionPeriod", "retention", "1m", 60),
        ("metricAggregationAlgorithm", "aggregation", "weightedExponential", "weighted-exponential"),
    ],
)
def test_old_spellings(old: str, field: str, text: str, value: object) -> None:
    spec = RevisionScaling.from_annotations({f"{DOMAIN}/{old}": text}, 0, ClusterDefaults())
    assert getattr(spec, field) == value
    assert validate_annotations({f"{DOMAIN}/{old}": text}) == []


def test_the_new_spelling_wins() -> None:
    both = {f"{DOMAIN}/minScale": "1", f"{DOMAIN}/min-scale": "2"}
    assert RevisionScaling.from_annotations(both, 0, ClusterDefaults()).min_scale == 2


def test_nothing_given_is_the_cluster_s() -> None:
    assert RevisionScaling.from_annotations({}, 0, ClusterDefaults()) == RevisionScaling()


def test_the_rest() -> None:
    annotations = {
        f"{DOMAIN}/window": "40s",
        f"{DOMAIN}/activation-scale": "3",
        f"{DOMAIN}/metric": "rps",
        "serving.knative.dev/progress-deadline": "30s",
        "relight.dev/count-starting": "true",
        "example.com/unknown": "x",
    }
    assert validate_annotations(annotations) == []
    spec = RevisionScaling.from_annotations(annotations, 0, ClusterDefaults())
    assert (spec.stable_window, spec.panic_window, spec.activation_scale) == (40, 4, 3)
    assert (spec.total, spec.target) == pytest.approx((200, 140))
    assert (spec.progress_deadline, spec.count_starting) == (30, True)


@pytest.mark.parametrize(("value", "ok"), [("1s", True), ("0s", False), ("1500ms", False), ("x", False)])
def test_progress_deadline(value: str, ok: bool) -> None:
    assert (validate_annotations({"serving.knative.dev/progress-deadline": value}) == []) is ok


def test_initial_scale_zero_only_where_the_cluster_allows_it() -> None:
    zero = autoscaling(initial_scale="0")
    allowed = ClusterDefaults(allow_zero_initial_scale=True)
    assert validate_annotations(zero)
    assert validate_annotations(zero, allowed) == []
    assert RevisionScaling.from_annotations(zero, 0, allowed).initial_scale == 0


@pytest.mark.parametrize(("value", "ok"), [("5", True), ("6", False), ("0", False)])
def test_max_scale_limit(value: str, ok: bool) -> None:
    limited = ClusterDefaults(max_scale=5, max_scale_limit=5)
    assert (validate_annotations(autoscaling(max_scale=value), limited) == []) is ok


def test_config_autoscaler() -> None:
    defaults = ClusterDefaults.from_config(
        {
            "_example": "ignored",
            "container-concurrency-target-percentage": "80",
            "stable-window": "2m",
            "enable-scale-to-zero": "false",
            "initial-scale": "2",
            "target-burst-capacity": "-1",
        }
    )
    assert defaults == ClusterDefaults(
        container_concurrency_target_fraction=0.8,
        stable_window=120,
        enable_scale_to_zero=False,
        initial_scale=2,
        target_burst_capacity=-1,
    )
    assert ClusterDefaults.from_config({}) == ClusterDefaults()
    # up to 1 it is read as a fraction: an old spelling
    assert ClusterDefaults.from_config({"container-concurrency-target-percentage": "0.5"}) == ClusterDefaults(
        container_concurrency_target_fraction=0.5
    )


def test_config_autoscaler_names_all_that_is_wrong() -> None:
    with pytest.raises(BadInput) as caught:
        ClusterDefaults.from_config(
            {"stable-window": "5s", "max-scale-up-rate": "1", "activator-capacity": "x", "initial-scale": "0"}
        )
    assert {problem.path for problem in caught.value.problems} == {
        "stable-window",
        "max-scale-up-rate",
        "activator-capacity",
        "initial-scale",
    }
