"""Bounded threads, and the queue in front of a model."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from relight.base.errors import NotReady, Overloaded
from relight.runtime.batcher import Batcher, Job
from relight.runtime.workers import Workers
from relight.wire.tensors import Array


class Gate:
    """Work that waits until it is let through."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.leave = threading.Event()

    def __call__(self) -> str:
        self.entered.release()
        assert self.leave.wait(10)
        return "through"


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.leave.set()


def test_as_many_at_once_as_there_are_threads(gate: Gate) -> None:
    workers = Workers("w", threads=3, limit=10)
    futures = [workers.submit(gate) for _ in range(5)]
    for _ in range(3):
        assert gate.entered.acquire(timeout=5)
    assert not gate.entered.acquire(blocking=False)
    assert workers.queued == 2
    gate.leave.set()
    assert [future.result(5) for future in futures] == ["through"] * 5
    workers.stop(5)


def test_full_is_an_answer(gate: Gate) -> None:
    workers = Workers("w", threads=1, limit=2)
    workers.submit(gate)
    assert gate.entered.acquire(timeout=5)
    waiting = [workers.submit(lambda: "waited") for _ in range(2)]
    with pytest.raises(Overloaded, match="2 requests are waiting") as refused:
        workers.submit(lambda: "never")
    assert refused.value.retry_after == 1
    assert waiting[0].cancel()
    late = workers.submit(lambda: "took the place of who left")
    gate.leave.set()
    assert [waiting[1].result(5), late.result(5)] == ["waited", "took the place of who left"]
    workers.stop(5)


def test_who_left_is_not_run(gate: Gate) -> None:
    workers = Workers("w", threads=1, limit=9)
    workers.submit(gate)
    assert gate.entered.acquire(timeout=5)
    ran: list[int] = []
    futures = [workers.submit(lambda number=number: ran.append(number)) for number in range(4)]
    assert futures[1].cancel()
    gate.leave.set()
    for number in (0, 2, 3):
        futures[number].result(5)
    assert ran == [0, 2, 3]
    workers.stop(5)


@pytest.mark.parametrize("raised", [ValueError("no"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_whatever_is_raised_ends_the_request_and_not_the_thread(raised: BaseException) -> None:
    workers = Workers("w", threads=1, limit=9)

    def work() -> None:
        raise raised

    with pytest.raises(type(raised)):
        workers.submit(work).result(5)
    assert workers.submit(lambda: sys.getrecursionlimit() > 0).result(5)
    workers.stop(5)


def test_stop_refuses_what_waits_and_lets_end_what_runs(gate: Gate) -> None:
    workers = Workers("w", threads=1, limit=9)
    running = workers.submit(gate)
    assert gate.entered.acquire(timeout=5)
    waiting = workers.submit(lambda: "never")
    stopper = threading.Thread(target=workers.stop, args=(10,))
    stopper.start()
    with pytest.raises(NotReady):
        waiting.result(5)
    gate.leave.set()
    assert running.result(5) == "through"
    stopper.join(5)
    with pytest.raises(NotReady):
        workers.submit(lambda: "after the end")
    workers.stop(5)


def test_a_request_is_let_go_of_before_the_next_comes() -> None:
    class Heavy:
        gone = threading.Event()

        def __del__(self) -> None:
            self.gone.set()

    workers = Workers("w", threads=1, limit=9)
    heavy = Heavy()
    workers.submit(lambda heavy=heavy: None).result(5)
    del heavy
    assert Heavy.gone.wait(5)
    workers.stop(5)


def test_cancel_one_of_four_and_the_other_three_answer(gate: Gate) -> None:
    computed: list[float] = []

    def compute(inputs: dict[str, Array]) -> dict[str, Array]:
        gate()
        computed.append(float(inputs["x"][0]))
        return {"y": inputs["x"] * 2}

    batcher = Batcher("m", compute, limit=9)
    futures = [batcher.submit(Job({"x": np.array([number], np.float32)})) for number in range(4)]
    assert gate.entered.acquire(timeout=5)
    assert futures[2].cancel()
    gate.leave.set()
    assert [futures[number].result(5).outputs["y"].tolist() for number in (0, 1, 3)] == [[0], [2], [6]]
    assert computed == [0, 1, 3]
    assert futures[3].result().queue > 0
    batcher.stop(5)
