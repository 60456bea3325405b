"""Which index a collection of vectors should have: pure, from its size, the memory and the recall that is wanted.

Sizes are those of the algorithms themselves: a vector is 4 bytes a dimension; HNSW adds 2 M links of 4 bytes on its
lowest level and a fifth of that above; product quantisation keeps one byte for each of its m parts. Parameters follow
Milvus's index documentation and Malkov & Yashunin (2018) for HNSW, Jégou et al. (2011) for IVF and PQ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

KINDS = ("FLAT", "HNSW", "IVF_FLAT", "IVF_PQ", "DISKANN")
SMALL = 5_000
"""Rows up to which every vector is looked at: at 384 dimensions that is 2 million multiplications, a millisecond."""
OVERHEAD = 1.2
"""Of memory, for keys, the allocator, and segments that are being merged."""


@dataclass(frozen=True)
class IndexPlan:
    """The choice: its kind, how it is built and searched, what it takes, and why it and no other."""

    kind: str
    build: Mapping[str, int] = field(default_factory=dict)
    search: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0
    """Of memory when the rows have grown as expected."""
    reason: str = ""


def choose_index(
    rows: int,
    dimension: int,
    *,
    memory: int,
    recall: float = 0.95,
    growth: float = 1.5,
    kinds: Sequence[str] = KINDS,
) -> IndexPlan:
    """The first of these that fits: FLAT, HNSW, IVF_FLAT, IVF_PQ, DISKANN.

    ``memory``: bytes for the index; ``recall``: the wanted share of the true nearest; ``growth``: what the number of
    rows will be multiplied by before anybody looks again; ``kinds``: what the store can build. The last of them that
    is possible is taken where none fits, and the reason says so.
    """
    planned = max(1, math.ceil(rows * growth))
    plans = [plan for plan in _candidates(planned, dimension, recall) if plan.kind in kinds]
    if not plans:
        return IndexPlan("FLAT", {}, {}, _flat(planned, dimension), "the store builds none of the others")
    for plan in plans:
        if plan.kind == "FLAT" and planned > SMALL and recall < 1.0:
            continue
        if plan.kind == "IVF_PQ" and recall > _pq_recall(dimension):
            continue
        if plan.bytes <= memory:
            return plan
    smallest = min(plans, key=lambda plan: plan.bytes)
    lacks = f"; nothing fits {_size(memory)}, and this takes the least memory of what the store builds"
    return IndexPlan(smallest.kind, smallest.build, smallest.search, smallest.bytes, smallest.reason + lacks)


def _candidates(rows: int, dimension: int, recall: float) -> list[IndexPlan]:
    """All kinds with their parameters, in the order in which they are preferred."""
    flat = _flat(rows, dimension)
    links = 16 if recall <= 0.95 else 32
    beam = 64 if recall <= 0.9 else 128 if recall <= 0.95 else 256 if recall <= 0.98 else 512
    hnsw = flat + math.ceil(rows * links * 2 * 4 * 1.2 * OVERHEAD)
    lists = min(65_536, max(1, 2 ** round(math.log2(max(1.0, 4 * math.sqrt(rows))))))
    probes = max(1, math.ceil(lists * (0.05 if recall <= 0.9 else 0.1 if recall <= 0.95 else 0.2)))
    parts = _parts(dimension)
    coded = math.ceil((rows * (parts + 8) + lists * dimension * 4) * OVERHEAD)
    what = f"{rows:,} rows of {dimension} dimensions"
    return [
        IndexPlan("FLAT", {}, {}, flat, f"{what} are few enough to look at every one: exact, nothing to build")
        if rows <= SMALL
        else IndexPlan("FLAT", {}, {}, flat, f"a recall of 1 is wanted, and only looking at all {what} gives it"),
        IndexPlan(
            "HNSW",
            {"M": links, "efConstruction": 200 if links == 16 else 400},
            {"ef": beam},
            hnsw,
            f"{what} with their graph take {_size(hnsw)} and fit; nothing answers sooner at a recall of {recall:g}",
        ),
        IndexPlan(
            "IVF_FLAT",
            {"nlist": lists},
            {"nprobe": probes},
            flat + math.ceil(lists * dimension * 4 * OVERHEAD),
            f"{what} fit, but not with a graph over them ({_size(hnsw)}): lists cost next to no memory",
        ),
        IndexPlan(
            "IVF_PQ",
            {"nlist": lists, "m": parts, "nbits": 8},
            {"nprobe": probes * 2},
            coded,
            f"{what} do not fit whole ({_size(flat)}): coded in {parts} bytes each they take {_size(coded)}",
        ),
        IndexPlan(
            "DISKANN",
            {},
            {"search_list": max(100, beam)},
            math.ceil(flat / 8),
            f"{what} do not fit whole ({_size(flat)}), and a recall of {recall:g} asks for whole vectors: from disk",
        ),
    ]


def _flat(rows: int, dimension: int) -> int:
    return math.ceil(rows * dimension * 4 * OVERHEAD)


def _parts(dimension: int) -> int:
    """Parts of product quantisation: 8 dimensions in each where that divides, else the next smaller number."""
    return next(parts for parts in range(max(1, dimension // 8), 0, -1) if dimension % parts == 0)


def _pq_recall(dimension: int) -> float:
    """What 8 dimensions in a byte can be expected to keep of recall@10; less where a part has to be larger."""
    return 0.9 if dimension // _parts(dimension) <= 8 else 0.8


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
