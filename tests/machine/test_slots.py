"""What fits on a machine, and who gives way to whom: tables."""

from __future__ import annotations

from typing import Any

import pytest

from relight.base.units import parse_amounts
from relight.decide import slots
from relight.decide.defaults import ClusterDefaults
from relight.decide.scaling import RevisionScaling
from relight.decide.slots import Holder, Limits

GPU = "nvidia.com/gpu"


def spec(*containers: dict[str, Any]) -> dict[str, Any]:
    return {"containers": [{"resources": one} for one in containers]}


@pytest.mark.parametrize(
    ("containers", "needs", "limits"),
    [
        pytest.param([{}], {}, Limits(), id="nothing-asked-for-takes-no-room"),
        pytest.param(
            [{"requests": {"cpu": "250m", "memory": "1Gi"}}], {"cpu": 250, "memory": 2**30}, Limits(), id="requests"
        ),
        pytest.param(
            [{"limits": {"cpu": "1500m", "memory": "512Mi"}}],
            {"cpu": 1500, "memory": 2**29},
            Limits(1.5, 2**29),
            id="a-limit-alone-is-requested-too",
        ),
        pytest.param([{"requests": {"cpu": "100m"}, "limits": {"cpu": 2}}], {"cpu": 100}, Limits(2.0, None), id="both"),
        pytest.param([{"limits": {GPU: "1"}}], {GPU: 1}, Limits(), id="a-gpu"),
        pytest.param([{"limits": {"nvidia.com/mig-1g.10gb": 2}}], {"nvidia.com/mig-1g.10gb": 2}, Limits(), id="slices"),
        pytest.param([{"requests": {"cpu": "0.0001"}}], {"cpu": 1}, Limits(), id="a-little-is-not-nothing"),
        pytest.param([{"requests": {"cpu": 0}}], {}, Limits(), id="zero-is-nothing"),
        pytest.param([{"requests": {"ephemeral-storage": "1Gi"}}], {}, Limits(), id="disk-is-not-counted"),
        pytest.param(
            [{"limits": {"memory": "1Gi"}}, {}], {"memory": 2**30}, Limits(), id="a-container-without-a-limit-has-none"
        ),
        pytest.param(
            [{"limits": {"memory": "1Gi"}}, {"limits": {"memory": "1Gi"}}],
            {"memory": 2**31},
            Limits(None, 2**31),
            id="containers-add-up",
        ),
    ],
)
def test_what_a_replica_needs(containers: list[dict[str, Any]], needs: dict[str, int], limits: Limits) -> None:
    assert slots.requested(spec(*containers)) == needs
    assert slots.limited(spec(*containers)) == limits


@pytest.mark.parametrize("bad", ["lots", "-1"])
def test_a_quantity_that_is_none(bad: str) -> None:
    with pytest.raises(ValueError, match=r"quantity|0 or more"):
        slots.requested(spec({"requests": {"cpu": bad}}))


@pytest.mark.parametrize(
    ("free", "need", "room", "lacks"),
    [
        pytest.param({"cpu": 2000}, {}, None, (), id="no-need-no-bound"),
        pytest.param({"cpu": 2000}, {"cpu": 500}, 4, (), id="by-one"),
        pytest.param({"cpu": 2000, "memory": 10}, {"cpu": 500, "memory": 4}, 2, (), id="by-the-scarcest"),
        pytest.param({"cpu": 2000}, {"cpu": 500, GPU: 1}, 0, (GPU,), id="what-is-not-there-is-zero"),
        pytest.param({"cpu": 100, "memory": 1}, {"cpu": 200, "memory": 2}, 0, ("cpu", "memory"), id="two-lack"),
        pytest.param({"cpu": -5}, {"cpu": 1}, 0, ("cpu",), id="overdrawn"),
    ],
)
def test_room(free: dict[str, int], need: dict[str, int], room: int | None, lacks: tuple[str, ...]) -> None:
    assert slots.room(free, need) == room
    assert slots.lacking(free, need) == lacks


def old(replicas: int, *, routed: bool = True, name: str = "old", **need: int) -> Holder:
    return Holder(name, need or {GPU: 1}, replicas, routed)


@pytest.mark.parametrize(
    ("strategy", "free", "wanted", "holders", "kept"),
    [
        pytest.param("surge", {GPU: 1}, 1, [old(1)], {}, id="room-beside-it"),
        pytest.param("surge", {GPU: 0}, 1, [old(3)], {"old": 2}, id="one-of-several-goes"),
        pytest.param("surge", {GPU: 0}, 3, [old(3)], {"old": 2}, id="only-one-however-many-are-wanted"),
        pytest.param("surge", {GPU: 0}, 1, [old(1)], {"old": 0}, id="the-last-one-goes-too-or-it-would-wait-for-ever"),
        pytest.param("recreate", {GPU: 5}, 1, [old(2)], {"old": 0}, id="recreate-stops-all-even-with-room"),
        pytest.param("surge", {GPU: 0}, 1, [], None, id="nobody-to-give"),
        pytest.param("surge", {GPU: 0}, 1, [old(2, cpu=500)], None, id="what-it-holds-does-not-help"),
        pytest.param(
            "surge", {GPU: 0}, 2, [old(3), old(2, routed=False, name="gone")], {"gone": 0}, id="first-who-is-not-called"
        ),
        pytest.param(
            "surge", {GPU: 0}, 1, [old(3), old(2, routed=False, name="gone")], {"gone": 1}, id="as-few-as-needed"
        ),
    ],
)
def test_who_gives_way(
    strategy: str, free: dict[str, int], wanted: int, holders: list[Holder], kept: dict[str, int] | None
) -> None:
    assert slots.giving_way(strategy, free, {GPU: 1}, wanted, holders) == kept


def test_a_big_one_takes_several_small_ones() -> None:
    need = {"memory": 10}
    assert slots.giving_way("surge", {"memory": 1}, need, 1, [old(4, memory=3)]) == {"old": 1}


def test_the_schedulers_sentence() -> None:
    said = slots.unschedulable(["cpu", GPU], ever=True)
    assert said.startswith("0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient nvidia.com/gpu. ")
    assert said != slots.unschedulable(["cpu", GPU], ever=False)


def test_what_is_declared() -> None:
    assert parse_amounts("cpu=1.5, memory=2Gi,nvidia.com/gpu=2") == {"cpu": 1500, "memory": 2**31, GPU: 2}
    assert parse_amounts("") == {}
    for wrong in ("cpu", "cpu=", "=1", "cpu=many"):
        with pytest.raises(ValueError, match=r"expected|quantity"):
            parse_amounts(wrong)


@pytest.mark.parametrize(
    ("annotation", "gpu", "counted"),
    [(None, False, False), (None, True, True), ("false", True, False), ("true", False, True)],
)
def test_starting_replicas_count_by_default_where_a_gpu_is_needed(
    annotation: str | None, gpu: bool, counted: bool
) -> None:
    annotations = {} if annotation is None else {"relight.dev/count-starting": annotation}
    scaling = RevisionScaling.from_annotations(annotations, 0, ClusterDefaults(), count_starting=gpu)
    assert scaling.count_starting is counted
