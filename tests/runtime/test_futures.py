"""The requests' own future: whatever the standard library's would say, it says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import (
    ALL_COMPLETED,
    CancelledError,
    Future,
    InvalidStateError,
    as_completed,
    wait,
)
from functools import partial
from typing import Any

import pytest

from relight.runtime.futures import LeanFuture


def told(work: Callable[[], Any]) -> Any:
    """What a call gives, or the kind of what it raises."""
    try:
        return work()
    except (Exception, CancelledError) as error:
        return type(error)


MOVES: dict[str, Callable[[Future[int]], Any]] = {
    "begin": lambda future: future.set_running_or_notify_cancel(),
    "cancel": lambda future: future.cancel(),
    "result": lambda future: future.set_result(7),
    "error": lambda future: future.set_exception(KeyError("k")),
}
LIVES = {
    "untouched": [],
    "begun": ["begin"],
    "done": ["begin", "result"],
    "done without a beginning": ["result"],
    "failed": ["begin", "error"],
    "cancelled": ["cancel"],
    "cancelled and told": ["cancel", "begin"],
    "cancelled twice": ["cancel", "cancel"],
    "too late to cancel": ["begin", "cancel", "result"],
    "done twice": ["result", "result"],
    "a result behind a failure": ["error", "result"],
    "a failure behind a result": ["result", "error"],
    "a result behind a cancellation": ["cancel", "begin", "result"],
}
QUESTIONS: dict[str, Callable[[Future[int]], Any]] = {
    "done": lambda future: future.done(),
    "cancelled": lambda future: future.cancelled(),
    "running": lambda future: future.running(),
    "result": lambda future: future.result(timeout=0),
    "exception": lambda future: type(future.exception(timeout=0)),
}


@pytest.mark.parametrize("moves", [pytest.param(moves, id=name) for name, moves in LIVES.items()])
def test_it_lives_as_the_librarys(moves: list[str]) -> None:
    def life(future: Future[int]) -> list[Any]:
        heard: list[bool] = []
        future.add_done_callback(lambda one: heard.append(one is future))
        seen = [told(partial(MOVES[move], future)) for move in moves]
        future.add_done_callback(lambda one: heard.append(one is future))
        seen += [told(partial(ask, future)) for ask in QUESTIONS.values()]
        return [*seen, heard]

    assert life(LeanFuture()) == life(Future())


def test_a_callback_that_raises_is_no_one_elses(caplog: pytest.LogCaptureFixture) -> None:
    future: LeanFuture[int] = LeanFuture()
    heard = []
    future.add_done_callback(lambda _: [][1])
    future.add_done_callback(heard.append)
    future.set_result(1)
    assert heard == [future]
    assert "exception calling callback" in caplog.text


@pytest.mark.parametrize("ending", ["result", "error", "cancel"])
def test_who_blocks_is_woken(ending: str) -> None:
    future: LeanFuture[int] = LeanFuture()
    entered, answers = threading.Barrier(3), []

    def block(ask: Callable[[], Any]) -> None:
        entered.wait()
        answers.append(told(ask))

    asks = (lambda: future.result(10), lambda: type(future.exception(10)))
    threads = [threading.Thread(target=block, args=(ask,)) for ask in asks]
    for thread in threads:
        thread.start()
    entered.wait()
    MOVES[ending](future)
    for thread in threads:
        thread.join(10)
    want = {"result": [7, type(None)], "error": [KeyError, KeyError], "cancel": [CancelledError, CancelledError]}
    assert sorted(answers, key=str) == sorted(want[ending], key=str)


def test_who_blocks_has_a_limit() -> None:
    with pytest.raises(TimeoutError):
        LeanFuture[int]().result(timeout=0.001)


def test_the_librarys_waiters_take_it() -> None:
    futures: list[Future[int]] = [LeanFuture(), LeanFuture()]
    thread = threading.Thread(target=lambda: [future.set_result(n) for n, future in enumerate(futures)])
    thread.start()
    done, left = wait(futures, timeout=10, return_when=ALL_COMPLETED)
    thread.join()
    assert (done, left) == (set(futures), set())
    assert sorted(future.result() for future in as_completed(futures, timeout=10)) == [0, 1]


async def awaited(future: Future[int], end: Callable[[], Any]) -> Any:
    waiting = asyncio.wrap_future(future)
    asyncio.get_running_loop().run_in_executor(None, end)
    return await asyncio.wait_for(waiting, 10)


def test_asyncio_takes_it() -> None:
    good: LeanFuture[int] = LeanFuture()
    assert asyncio.run(awaited(good, lambda: good.set_result(3))) == 3
    bad: LeanFuture[int] = LeanFuture()
    with pytest.raises(KeyError):
        asyncio.run(awaited(bad, lambda: bad.set_exception(KeyError())))


def test_it_ends_once_whoever_comes_first() -> None:
    for _ in range(200):
        future: LeanFuture[int] = LeanFuture()
        ends, start = [], threading.Barrier(2)

        def end(number: int, future: LeanFuture[int] = future, start: threading.Barrier = start) -> None:
            start.wait()
            try:
                future.set_result(number)
            except InvalidStateError:
                return
            ends.append(number)  # noqa: B023  the threads are over before the next list

        threads = [threading.Thread(target=end, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ends == [future.result(0)]
