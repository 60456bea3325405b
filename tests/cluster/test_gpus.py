"""Whether a model fits the GPUs of a cluster: by tables of nodes."""

from __future__ import annotations

from typing import Any

import pytest

from relight.decide.gpus import refusal, wanted

GIB = 2**30


def node(name: str, resource: str, count: int = 1, memory: int | None = None, **labels: str) -> dict[str, Any]:
    """``memory`` in MiB, as NVIDIA's feature discovery writes it."""
    given = dict(labels) | ({f"{resource}.memory": str(memory)} if memory is not None else {})
    return {"metadata": {"name": name, "labels": given}, "status": {"allocatable": {resource: str(count)}}}


T4 = node("t4", "nvidia.com/gpu", 1, 15360, **{"nvidia.com/gpu.product": "Tesla-T4"})
A100 = node("a100", "nvidia.com/gpu", 8, 81920)
UNKNOWN = node("any", "nvidia.com/gpu", 1)
MIG = node("mig", "nvidia.com/mig-1g.10gb", 7)
CPU = {"metadata": {"name": "cpu"}, "status": {"allocatable": {"cpu": "8"}}}
BUSY = node("gone", "nvidia.com/gpu", 0, 81920)
ROWS: list[tuple[str, float, str, int, list[Any], str | None]] = [
    ("fits", 10, "nvidia.com/gpu", 1, [T4, CPU], None),
    ("fits the larger one", 40, "nvidia.com/gpu", 1, [T4, A100], None),
    ("fits none", 24, "nvidia.com/gpu", 1, [T4, CPU], "24.0 GiB of weights"),
    ("fits two", 24, "nvidia.com/gpu", 2, [T4], None),
    ("does not fit two", 31, "nvidia.com/gpu", 2, [T4], "2 of them have 30.0 GiB"),
    ("a node that does not say its size may have any", 24, "nvidia.com/gpu", 1, [T4, UNKNOWN], None),
    ("no node has one: it may be made when it is asked for", 24, "nvidia.com/gpu", 1, [CPU], None),
    ("no nodes at all, as in local mode", 24, "nvidia.com/gpu", 1, [], None),
    ("a node whose plugin offers none does not count", 24, "nvidia.com/gpu", 1, [T4, BUSY], "Tesla-T4 on node t4"),
    ("a slice's name says its size", 12, "nvidia.com/mig-1g.10gb", 1, [MIG], "it has 10.0 GiB"),
    ("fits a slice", 9, "nvidia.com/mig-1g.10gb", 1, [MIG], None),
]


@pytest.mark.parametrize(
    ("gib", "resource", "count", "nodes", "says"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_fitting(gib: float, resource: str, count: int, nodes: list[Any], says: str | None) -> None:
    reason = refusal("bert", int(gib * GIB), resource, count, nodes)
    if says is None:
        assert reason is None
    else:
        assert reason is not None
        assert says in reason


LIMITS = [
    ({"nvidia.com/gpu": "1", "memory": "1Gi"}, ("nvidia.com/gpu", 1)),
    ({"nvidia.com/mig-2g.20gb": 2}, ("nvidia.com/mig-2g.20gb", 2)),
    ({"amd.com/gpu": "1"}, ("amd.com/gpu", 1)),
    ({"memory": "1Gi", "example.com/fpga": "1"}, None),
    ({}, None),
]


@pytest.mark.parametrize(("limits", "found"), LIMITS, ids=[str(row[0]) for row in LIMITS])
def test_what_a_spec_asks_for(limits: dict[str, Any], found: Any) -> None:
    assert wanted({"containers": [{"resources": {"limits": limits}}]}) == found
