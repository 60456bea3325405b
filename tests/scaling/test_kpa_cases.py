"""Every row of the table of facts about Knative's pod autoscaler."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
from tables import load

from relight.decide.activators import assigned, num_activators, sample_size, throttle_capacity
from relight.decide.annotations import DOMAIN, validate_annotations
from relight.decide.defaults import ClusterDefaults
from relight.decide.last_step import Activity, ScaleTarget, activity, last_step
from relight.decide.scaling import (
    Observation,
    RevisionScaling,
    decide,
    initial_excess,
    initial_state,
    panic_window,
    resolve_target,
    same_sign,
)
from relight.decide.windows import LinearAverage, MaxWindow, WeightedAverage, coefficient

CASES = load("kpa_cases")


def rows(name: str, *path: str) -> Any:
    """The rows of one table as parameters, by their own id or by what they hold."""
    table = CASES[name]
    for key in path:
        table = table[key]
    return [
        pytest.param(row, id=str(row.get("id") or ",".join(f"{k}={v}" for k, v in row.items() if k != "origin")))
        for row in table
    ]


def test_the_defaults_are_the_cluster_s() -> None:
    want, have = CASES["defaults"], ClusterDefaults()
    assert have.container_concurrency_target_fraction == want["container_concurrency_target_fraction"]
    assert have.rps_target_fraction == want["target_utilization_rps"]
    assert have.requests_per_second_target_default == want["rps_target_default"]
    for name in (
        "container_concurrency_target_default",
        "panic_window_percentage",
        "panic_threshold_percentage",
        "max_scale_up_rate",
        "max_scale_down_rate",
        "target_burst_capacity",
        "activator_capacity",
        "initial_scale",
        "min_scale",
        "max_scale",
    ):
        assert getattr(have, name) == want[name], name
    for name, key in (
        ("stable_window", "stable_window_s"),
        ("scale_to_zero_grace_period", "scale_to_zero_grace_period_s"),
        ("scale_to_zero_pod_retention_period", "scale_to_zero_pod_retention_s"),
        ("scale_down_delay", "scale_down_delay_s"),
        ("progress_deadline", "progress_deadline_s"),
    ):
        assert getattr(have, name) == want[key], name


@pytest.mark.parametrize("row", rows("scale"))
def test_scale(row: dict[str, Any]) -> None:
    given = row["spec"]
    spec = RevisionScaling(
        metric=given["metric"],
        target=given["target"],
        total=given["total"],
        target_burst_capacity=given["tbc"],
        panic_threshold=given["panic_threshold"],
        max_scale_up_rate=given["max_up"],
        max_scale_down_rate=given["max_down"],
        stable_window=given["stable_window_s"],
        scale_down_delay=given["scale_down_delay_s"],
        activation_scale=given["activation_scale"],
    )
    state = initial_state(row["init"]["ready_at_creation"], row["steps"][0]["t"])
    if "panic_since" in row["init"]:
        state = dataclasses.replace(
            state, panic_since=row["init"]["panic_since"], max_panic_pods=row["init"]["max_panic_pods"]
        )
    for step in row["steps"]:
        seen = Observation(step["ready"], step["stable"], step["panic"], reachable=given["reachable"])
        decision, state = decide(spec, state, seen, step["t"])
        want = step["want"]
        assert decision.valid is want["valid"]
        assert decision.desired == want["desired"], step
        assert abs(decision.excess_burst_capacity - want["ebc"]) <= 1, step
        if "panic_since" in want:
            assert decision.panic_since == want["panic_since"] == state.panic_since, step


@pytest.mark.parametrize("row", rows("start_state"))
def test_start_state(row: dict[str, Any]) -> None:
    state = initial_state(None if row.get("error") else row["ready"], 17.0)
    assert (state.panic_since is not None) is row["want_panic"]
    assert state.max_panic_pods == row["want_max_panic_pods"]


@pytest.mark.parametrize("row", rows("resolve_target"))
def test_resolve_target(row: dict[str, Any]) -> None:
    defaults = ClusterDefaults(
        container_concurrency_target_fraction=row.get("cfg_cc_fraction", 0.7),
        container_concurrency_target_default=row.get("cfg_cc_default", 100),
    )
    utilization = row["ann_utilization"] / 100 if "ann_utilization" in row else None
    concurrency = row.get("container_concurrency", 0)
    metric = row.get("metric", "concurrency")
    have = resolve_target(
        metric=metric,
        container_concurrency=concurrency,
        target=row.get("ann_target"),
        utilization=utilization,
        defaults=defaults,
    )
    assert have == pytest.approx(tuple(row["want"]))

    annotations = {f"{DOMAIN}/metric": metric}
    if "ann_target" in row:
        annotations[f"{DOMAIN}/target"] = str(row["ann_target"])
    if "ann_utilization" in row:
        annotations[f"{DOMAIN}/target-utilization-percentage"] = str(row["ann_utilization"])
    spec = RevisionScaling.from_annotations(annotations, concurrency, defaults)
    assert (spec.target, spec.total) == pytest.approx(tuple(row["want"]))


@pytest.mark.parametrize("row", rows("panic_window"))
def test_panic_window(row: dict[str, Any]) -> None:
    assert panic_window(row["stable_s"], row["percent"]) == row["want_panic_s"]


@pytest.mark.parametrize("origin", [0, 1_000_000], ids=["from zero", "from a million"])
def test_linear_average(origin: int) -> None:
    window = LinearAverage(5)
    for number, (what, at, value) in enumerate(CASES["linear_average"]["events"]):
        if what == "rec":
            window.record(origin + at, value)
        else:
            assert window.average(origin + at) == pytest.approx(value, abs=1e-6), f"event {number}: average at {at}"


@pytest.mark.parametrize("row", rows("weighted_average", "coeff_cases"))
def test_weighted_coefficient(row: dict[str, Any]) -> None:
    assert coefficient(row["n"]) == pytest.approx(row["want"], abs=1e-5)


def test_weighted_average() -> None:
    case = CASES["weighted_average"]["avg_case"]
    assert coefficient(case["window_s"]) == pytest.approx(case["m"], abs=1e-6)
    window = WeightedAverage(case["window_s"])
    for at, value in enumerate(case["values_newest_last"]):
        window.record(at, value)
    assert window.average(len(case["values_newest_last"]) - 1) == pytest.approx(case["want_rounded3"], abs=5e-4)


@pytest.mark.parametrize("row", rows("delay_max_window", "cases"))
def test_delay_max_window(row: dict[str, Any]) -> None:
    table = CASES["delay_max_window"]
    window = MaxWindow.over(table["window_s"], table["granularity_s"])
    for at, value in row["rec"]:
        window = window.record(1_000 + at, value)
    assert window.current == row["want"]


@pytest.mark.parametrize("row", rows("last_step_and_zero"))
def test_last_step_and_zero(row: dict[str, Any]) -> None:
    # The table's own settings where a row does not say: window 300 s, grace 60 s, progress deadline 120 s.
    now = 10_000.0
    spec = RevisionScaling(
        stable_window=row.get("pa_window_s", 300),
        grace_period=60,
        retention=row.get("pa_retention_s", row.get("cluster_retention_s", 0)),
        progress_deadline=row.get("progress_deadline_s", 120),
        target_burst_capacity=row.get("tbc", 211),
        min_scale=row.get("min_scale", 0),
        initial_scale=row.get("initial_scale", 1),
        enable_scale_to_zero=row.get("scale_to_zero_enabled", True),
    )
    target = ScaleTarget(
        replicas=row["start_replicas"],
        ready=row["start_replicas"],
        activity=Activity(row.get("state", "active")),
        since=now - row.get("state_for_s", 0),
        initialized="initial_scale" not in row,
        reachable=row.get("reachability") != "unreachable",
        proxy_since=now - row["proxy_for_s"] if "proxy_for_s" in row else None,
        # "must not be called": the answer may not depend on it, so give the one that would hold everything up
        activator_in_path=row.get("probe", True) is True,
    )
    step = last_step(spec, target, row["desired"], now)
    assert step.want == row["want"]
    assert (step.scale is not None) is row["want_scale_call"]
    assert step.scale in (None, row["want"])


@pytest.mark.parametrize("row", rows("num_activators"))
def test_num_activators(row: dict[str, Any]) -> None:
    assert num_activators(row["pods"], row["total"], row["tbc"], row["activator_capacity"]) == row["want"]


@pytest.mark.parametrize("row", rows("activator_throttle_capacity"))
def test_activator_throttle_capacity(row: dict[str, Any]) -> None:
    want = row["want"]
    if isinstance(want, str):
        want = 0 if want.startswith("closed") else math.inf
    if "direct_pods" in row:
        mine = assigned(row["direct_pods"], row["index"], row["activators"])
        assert throttle_capacity(row["cc"], assigned=mine, activators=row["activators"]) == want
    else:
        assert throttle_capacity(row["cc"], backends=row["backends"]) == want


@pytest.mark.parametrize("row", rows("scrape_sample_size"))
def test_scrape_sample_size(row: dict[str, Any]) -> None:
    assert sample_size(row["pods"]) == row["want"]


@pytest.mark.parametrize("row", rows("ebc_sign_same"))
def test_ebc_sign_same(row: dict[str, Any]) -> None:
    assert same_sign(row["a"], row["b"]) is row["want"]
    assert same_sign(row["b"], row["a"]) is row["want"]


@pytest.mark.parametrize("row", rows("annotation_validation"))
def test_annotation_validation(row: dict[str, Any]) -> None:
    annotations = {f"{DOMAIN}/{key}": value for key, value in row["annotations"].items()}
    problems = validate_annotations(annotations)
    assert (not problems) is row["valid"], problems
    for problem in problems:
        assert any(problem.path.endswith(key) for key in annotations), problem
        assert problem.message


@pytest.mark.parametrize("row", rows("active_condition"))
def test_active_condition(row: dict[str, Any]) -> None:
    wants = {0: (0,), -1: (-1,), ">0": (1, 5)}[row["want"]]
    minimums = {"any": (0, 1, 3), 0: (0,), ">0": (1, 3)}[row["min"]]
    states = list(Activity) if row["was"] == "any" else [Activity(row["was"])]
    tried = 0
    for want, minimum, was in itertools.product(wants, minimums, states):
        for ready in range(minimum + 3):
            if (row["ready"] == "<min" and ready >= minimum) or (row["ready"] == ">=min" and ready < minimum):
                continue
            assert activity(want, ready, minimum, was) is Activity(row["new"]), (want, ready, minimum, was)
            tried += 1
    assert tried


@pytest.mark.parametrize("row", rows("initial_ebc"))
def test_initial_ebc(row: dict[str, Any]) -> None:
    spec = RevisionScaling(
        target_burst_capacity=row["tbc"], initial_scale=row.get("initial_scale", 1), total=row.get("total", 100)
    )
    assert initial_excess(spec) == row["want"]


def test_no_table_is_left_out() -> None:
    about = {"source", "conventions", "defaults"}
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    tested |= {"weighted_average", "linear_average"}
    assert set(CASES) - about <= tested
