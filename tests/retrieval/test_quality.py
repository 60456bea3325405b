"""The recall of an index against exact search, on a store that loses what a test says."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from relight.base.errors import NotReady
from relight.retrieval.quality import Recall, RecallWatch, RollingSample, measure_recall
from relight.retrieval.vectors import Hit, Query, Row, Space


class Lossy:
    """Exact, but for rows of ``lost``; as an index that does not reach them."""

    def __init__(self, rows: list[Row], lost: set[str] | None = None) -> None:
        self.rows, self.lost = rows, lost or set()
        self.fails = False
        self.closed = False

    def space(self) -> Space | None:
        if self.fails:
            raise NotReady("down")
        return Space(len(self.rows[0].vector)) if self.rows else None

    def scan(self, batch: int = 7) -> Iterator[list[Row]]:
        for at in range(0, len(self.rows), 7):
            yield self.rows[at : at + 7]

    def search(self, vector: Any, query: Query) -> list[Hit]:
        some = [row for row in self.rows if row.key not in self.lost and row.tenant == query.tenant]
        scored = sorted(((float(np.dot(vector, row.vector)), row) for row in some), key=lambda one: -one[0])
        return [Hit(row.document, row.chunk, row.text, score) for score, row in scored[: query.k]]

    def close(self) -> None:
        self.closed = True


def rows(count: int, tenant: str = "default") -> list[Row]:
    random = np.random.default_rng(3)
    vectors = random.normal(size=(count, 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return [Row(f"d{n}", "0", "", list(map(float, vector)), {}, tenant) for n, vector in enumerate(vectors)]


def test_recall_is_the_share_that_is_found() -> None:
    there = rows(100) + rows(30, "other")
    sample = [(row.tenant, row.vector) for row in there[:40] + there[100:110]]
    whole = measure_recall(Lossy(there), sample)  # type: ignore[arg-type]
    assert whole is not None
    assert (whole.value, whole.questions, whole.rows) == (1.0, 50, 130)
    half = measure_recall(Lossy(there, {row.key for row in there[::2]}), sample)  # type: ignore[arg-type]
    assert half is not None
    assert half.value == pytest.approx(0.5, abs=0.1)


def test_nothing_to_measure() -> None:
    assert measure_recall(Lossy([]), [("default", [1.0])]) is None  # type: ignore[arg-type]
    assert measure_recall(Lossy(rows(3)), []) is None  # type: ignore[arg-type]
    assert measure_recall(Lossy(rows(3)), [("nobody", rows(1)[0].vector)]) is None  # type: ignore[arg-type]


def test_the_sample_rolls() -> None:
    sample = RollingSample(size=5, of=20)
    assert sample.draw() == []
    for number in range(100):
        sample.add([float(number)])
    drawn = [vector[0] for _, vector in sample.draw()]
    assert len(set(drawn)) == 5
    assert min(drawn) >= 80


def test_the_watch_tells_each_look_and_a_failed_one_too() -> None:
    there = rows(50)
    store = Lossy(there)
    sample = RollingSample()
    for row in there[:10]:
        sample.add(row.vector)
    told: list[Recall | None] = []
    fresh = threading.Event()

    def tell(recall: Recall | None) -> None:
        told.append(recall)
        fresh.set()

    watch = RecallWatch(store, sample, tell, every=0.01)  # type: ignore[arg-type]
    watch.start()
    assert fresh.wait(10)
    assert told[0] is not None
    assert told[0].value == 1.0
    store.fails = True
    for _ in range(100):
        fresh.clear()
        assert fresh.wait(10)
        if told[-1] is None:
            break
    assert told[-1] is None
    watch.close()
    watch.close()
    assert store.closed
