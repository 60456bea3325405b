"""Whether a model fits the GPUs of a cluster, by its weights and by what the nodes say of themselves.

Nodes name the memory of one GPU in a label (NVIDIA's GPU feature discovery: ``nvidia.com/gpu.memory``, in MiB; for
slices ``nvidia.com/mig-1g.10gb.memory``). A node without that label may have any: then nothing is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_GPU = re.compile(r"(nvidia\.com/(gpu|mig-\S+)|amd\.com/gpu|gpu\.intel\.com/\S+)(\.shared)?")
_MIG = re.compile(r"nvidia\.com/mig-\d+g\.(\d+)gb")
_MIB = 2**20


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU of one node. ``memory`` is in bytes; None: the node does not say."""

    node: str
    product: str
    memory: int | None


def wanted(spec: Mapping[str, Any]) -> tuple[str, int] | None:
    """(resource, how many) that a revision's spec asks for; None: it runs without a GPU."""
    for container in spec.get("containers") or ():
        limits = (container.get("resources") or {}).get("limits") or {}
        for name, count in limits.items():
            if _GPU.fullmatch(str(name)):
                return str(name), int(count)
    return None


def gpus(nodes: Sequence[Mapping[str, Any]], resource: str) -> list[Gpu]:
    """What the nodes have of a resource, one entry a node."""
    found = []
    for node in nodes:
        status, meta = node.get("status") or {}, node["metadata"]
        count = (status.get("allocatable") or status.get("capacity") or {}).get(resource)
        if count is None or int(count) < 1:
            continue
        labels = meta.get("labels") or {}
        product = str(labels.get(f"{resource}.product") or labels.get("nvidia.com/gpu.product") or resource)
        found.append(Gpu(str(meta["name"]), product, _memory(labels, resource)))
    return found


def refusal(model: str, size: int, resource: str, count: int, nodes: Sequence[Mapping[str, Any]]) -> str | None:
    """Why a model of ``size`` bytes of weights can run on none of these nodes, with the numbers; None: it may."""
    there = gpus(nodes, resource)
    sizes = [gpu.memory for gpu in there]
    if not there or None in sizes:
        return None
    largest = max(there, key=lambda gpu: gpu.memory or 0)
    room = (largest.memory or 0) * count
    if size <= room:
        return None
    each = f"{count} of them have" if count > 1 else "it has"
    return (
        f"model {model} has {_gib(size)} of weights, and no GPU of this cluster holds them: the largest {resource} is "
        f"{largest.product} on node {largest.node}, and {each} {_gib(room)}"
    )


def _memory(labels: Mapping[str, Any], resource: str) -> int | None:
    text = str(labels.get(f"{resource}.memory") or "")
    if text.isdecimal():
        return int(text) * _MIB
    slice_of = _MIG.fullmatch(resource)
    return int(slice_of[1]) * 1024 * _MIB if slice_of else None


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
