"""Bounded threads, and an alarm."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest

from relight.base.errors import NotReady, Overloaded
from relight.runtime.workers import Alarm, Stopwatch, Workers


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


def test_an_alarm_rings_at_the_earliest_time_and_again_when_it_is_set_again() -> None:
    rung: list[float] = []
    again = threading.Event()
    begun = time.perf_counter()

    def ring() -> None:
        rung.append(time.perf_counter() - begun)
        if len(rung) == 1:
            alarm.set(begun + 0.06)
        else:
            again.set()

    alarm = Alarm("a", ring)
    alarm.set(begun + 60)
    alarm.set(begun + 0.03)
    alarm.set(begun + 50)
    assert again.wait(5)
    assert rung[0] >= 0.03
    assert rung[1] >= 0.06
    alarm.stop()
    alarm.set(begun)
    alarm.stop()
    assert len(rung) == 2


def test_a_time_that_is_past_rings_at_once() -> None:
    rung = threading.Event()
    alarm = Alarm("a", rung.set)
    alarm.set(0.0)
    assert rung.wait(5)
    alarm.stop()


def test_who_waits_is_slow_and_who_works_is_what_it_works() -> None:
    waiting = Stopwatch()
    threading.Event().wait(0.02)
    assert waiting.seconds(0.001) >= 0.02, "it gave the CPU up of itself"
    working = Stopwatch()
    begun = time.thread_time()
    while time.thread_time() - begun < 0.02:
        pass
    assert working.seconds(0.001) >= 0.02
    assert Stopwatch().seconds(60) < 60
