"""Which index: a table of sizes."""

from __future__ import annotations

import pytest

from relight.decide.indexing import KINDS, choose_index

GIB = 2**30


@pytest.mark.parametrize(
    ("rows", "dimension", "memory", "recall", "kinds", "kind", "reason"),
    [
        (0, 384, GIB, 0.95, KINDS, "FLAT", "few enough"),
        (3_000, 384, GIB, 0.95, KINDS, "FLAT", "few enough"),
        (100_000, 384, GIB, 0.95, KINDS, "HNSW", "and fit"),
        (100_000, 384, GIB, 1.0, KINDS, "FLAT", "a recall of 1"),
        # 1.5 million after growth: 2.6 GiB of vectors, 2.9 with links.
        (1_000_000, 384, 3 * GIB, 0.95, KINDS, "HNSW", "and fit"),
        (1_000_000, 384, int(2.65 * GIB), 0.95, KINDS, "IVF_FLAT", "not with a graph"),
        (1_000_000, 384, GIB, 0.85, KINDS, "IVF_PQ", "coded in 48 bytes"),
        # Codes do not reach the recall that is wanted.
        (1_000_000, 384, GIB, 0.95, KINDS, "DISKANN", "from disk"),
        (1_000_000, 384, GIB, 0.95, ("FLAT", "HNSW", "IVF_FLAT"), "FLAT", "nothing fits 1.0 GiB"),
        (100_000, 384, GIB, 0.95, ("FLAT",), "FLAT", "nothing fits"),
        (100_000, 7, GIB, 0.95, KINDS, "HNSW", "and fit"),
    ],
)
def test_the_choice(
    rows: int, dimension: int, memory: int, recall: float, kinds: tuple[str, ...], kind: str, reason: str
) -> None:
    plan = choose_index(rows, dimension, memory=memory, recall=recall, kinds=kinds)
    assert (plan.kind, plan.kind in kinds) == (kind, True)
    assert reason in plan.reason, plan.reason


def test_more_recall_costs_more_search() -> None:
    beams = [choose_index(100_000, 384, memory=GIB, recall=recall).search["ef"] for recall in (0.9, 0.95, 0.98, 0.99)]
    assert beams == sorted(set(beams))


def test_growth_counts() -> None:
    now = choose_index(4_000, 384, memory=GIB, growth=1.0)
    later = choose_index(4_000, 384, memory=GIB, growth=3.0)
    assert (now.kind, later.kind) == ("FLAT", "HNSW")
    assert later.bytes > now.bytes
