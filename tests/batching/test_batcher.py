"""The batcher at work: its threads, its futures, and that no passenger pays for another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, wait
from typing import Any

import numpy as np
import pytest
from programs.hosting import until

from relight.base.errors import BadInput, Deadline, NotReady, Overloaded
from relight.decide.batching import BatchingSettings, QueuePolicy
from relight.decide.costs import SURE
from relight.decide.inlining import PROBATION
from relight.runtime.batcher import Batcher, Computed, Job, for_model
from relight.runtime.tickets import Seat, Ticket
from relight.runtime.timeouts import SWEEP, Timeouts
from relight.sdk import Array, Model, TensorSpec

S = BatchingSettings
WAIT = 10
"""Seconds within which whatever must happen has happened."""


class Doubling:
    """Doubles ``x``, keeps what it was given, and stands still while ``go`` is not set; some rows it cannot bear."""

    def __init__(self) -> None:
        self.runs: list[Array] = []
        self.threads: list[int] = []
        self.entered = threading.Semaphore(0)
        self.go = threading.Event()
        self.go.set()
        self.poison: set[float] = set()
        self.most = 1000

    def __call__(self, inputs: dict[str, Array]) -> dict[str, Array]:
        x = inputs["x"]
        self.runs.append(np.array(x))
        self.threads.append(threading.get_ident())
        self.entered.release()
        assert self.go.wait(WAIT)
        if len(x) > self.most:
            raise MemoryError
        if self.poison & set(x.ravel().tolist()):
            raise ValueError("poison")
        return {"y": x * 2}

    @property
    def sizes(self) -> list[int]:
        return [len(run) for run in self.runs]


@pytest.fixture
def model() -> Iterator[Doubling]:
    model = Doubling()
    yield model
    model.go.set()


def batcher(model: Doubling, settings: BatchingSettings | None = None, limit: int = 100, **more: Any) -> Batcher:
    instances = more.pop("instances", 1)
    return Batcher("m", [model] * instances, limit, settings or S(8), **more)


def job(*rows: float, **parameters: Any) -> Job:
    return Job({"x": np.array(rows, np.float32).reshape(-1, 1)}, parameters)


def numbers(computed: Computed) -> list[float]:
    return [float(value) for value in computed.outputs["y"].ravel()]


def busy(model: Doubling, at_work: Batcher) -> Any:
    """Stop the model in a run of its own, so that all that comes then waits."""
    model.go.clear()
    future = at_work.submit(job(-1))
    assert model.entered.acquire(timeout=WAIT)
    return future


def test_cancel_one_of_four_and_the_other_three_answer(model: Doubling) -> None:
    one = batcher(model)
    first = busy(model, one)
    futures = [one.submit(job(number)) for number in range(4)]
    assert futures[2].cancel()
    model.go.set()
    assert [numbers(futures[number].result(WAIT)) for number in (0, 1, 3)] == [[0], [2], [6]]
    assert model.runs[1].ravel().tolist() == [0, 1, 3], "who left is not computed"
    assert numbers(first.result()) == [-2]
    assert futures[3].result().queue > 0
    one.stop(WAIT)


def test_a_request_on_an_idle_instance_leaves_at_once_whatever_the_wait_allowed(model: Doubling) -> None:
    one = batcher(model, S(8, max_queue_delay=60.0))
    for number in range(20):
        assert one.submit(job(number)).result(WAIT).queue < 30
    assert model.sizes == [1] * 20
    one.stop(WAIT)


def test_a_request_larger_than_a_run_is_split_and_put_together_again(model: Doubling) -> None:
    one = batcher(model, S(4))
    busy(model, one)
    large, small = one.submit(job(*range(9))), one.submit(job(100, 101))
    model.go.set()
    assert numbers(large.result(WAIT)) == [2.0 * number for number in range(9)]
    assert numbers(small.result(WAIT)) == [200, 202]
    assert max(model.sizes) == 4
    assert sum(model.sizes) == 12
    assert [8, 100, 101] in [run.ravel().tolist() for run in model.runs], "its last part has company"
    one.stop(WAIT)


def test_what_is_left_of_a_large_request_is_not_computed_when_its_caller_leaves(model: Doubling) -> None:
    one = batcher(model, S(4))
    model.go.clear()
    large = one.submit(job(*range(12)))
    assert model.entered.acquire(timeout=WAIT)
    assert not large.cancel(), "it has begun"
    after = one.submit(job(50))
    model.go.set()
    assert numbers(after.result(WAIT)) == [100]
    assert model.sizes == [4, 1]
    assert one.queued == 0
    one.stop(WAIT)


@pytest.mark.parametrize("bad", [{3}, {0, 7}, {0, 1, 2, 3, 4, 5, 6, 7}], ids=["one", "two", "all"])
def test_a_poisoned_row_harms_nobody_else(model: Doubling, bad: set[float]) -> None:
    one = batcher(model)
    busy(model, one)
    futures = [one.submit(job(number)) for number in range(8)]
    model.poison = bad
    model.go.set()
    for number, future in enumerate(futures):
        if number in bad:
            with pytest.raises(ValueError, match="poison"):
                future.result(WAIT)
        else:
            assert numbers(future.result(WAIT)) == [2 * number]
    # Once with all, then by halves: nobody more than 1 + log2(8) times.
    computed = [value for run in model.runs[1:] for value in run.ravel().tolist()]
    assert max(computed.count(value) for value in range(8)) <= 4
    if len(bad) == 1:
        assert len(model.runs) - 1 == 7
    one.stop(WAIT)


def test_a_part_that_fails_is_the_end_of_its_request_alone(model: Doubling) -> None:
    one = batcher(model, S(4))
    busy(model, one)
    large, small = one.submit(job(*range(9))), one.submit(job(100))
    model.poison = {1}
    model.go.set()
    with pytest.raises(ValueError, match="poison"):
        large.result(WAIT)
    assert numbers(small.result(WAIT)) == [200]
    one.stop(WAIT)


def test_a_run_that_is_too_large_for_the_machine_is_made_by_halves_and_then_not_again(model: Doubling) -> None:
    one = batcher(model, S(8))
    model.most = 2
    for _ in range(12):
        busy(model, one)
        futures = [one.submit(job(number)) for number in range(8)]
        model.go.set()
        assert [numbers(future.result(WAIT)) for future in futures] == [[2 * number] for number in range(8)]
        until(lambda: one._idle, "the instance is idle")
        while model.entered.acquire(blocking=False):
            pass
    before = len(model.runs)
    busy(model, one)
    futures = [one.submit(job(number)) for number in range(8)]
    model.go.set()
    wait(futures, WAIT)
    assert max(model.sizes[before:]) <= 2
    one.stop(WAIT)


def test_a_model_whose_outputs_have_other_rows_is_computed_alone() -> None:
    def mean(inputs: dict[str, Array]) -> dict[str, Array]:
        return {"y": inputs["x"].mean(axis=0, keepdims=True)}

    one = Batcher("m", [mean], 100, S(8))
    with one._lock:  # All of them come while nothing can be decided.
        gate = threading.Thread(target=lambda: futures.extend(one.submit(job(number)) for number in range(4)))
        futures: list[Any] = []
        gate.start()
    gate.join(WAIT)
    assert [numbers(future.result(WAIT)) for future in futures] == [[0], [1], [2], [3]]
    one.stop(WAIT)


def test_a_model_may_write_into_the_same_memory_at_every_run(model: Doubling) -> None:
    memory = np.zeros((8, 1), np.float32)

    def reusing(inputs: dict[str, Array]) -> dict[str, Array]:
        size = len(inputs["x"])
        np.multiply(model(inputs)["y"], 1, out=memory[:size])
        return {"y": memory[:size]}

    one = Batcher("m", [reusing], 100, S(8))
    alone = [one.submit(job(number)).result(WAIT) for number in range(3)]
    busy(model, one)
    futures = [one.submit(job(number)) for number in range(10, 14)]
    model.go.set()
    together = [future.result(WAIT) for future in futures]
    one.submit(job(99)).result(WAIT)
    assert [numbers(computed) for computed in alone] == [[0], [2], [4]]
    assert [numbers(computed) for computed in together] == [[20], [22], [24], [26]]
    one.stop(WAIT)


APART = {
    "parameters": (job(1, mode="a"), job(2, mode="b")),
    "a parameter and none": (job(1, mode="a"), job(2)),
    "true is not 1": (job(1, mode=True), job(2, mode=1)),
    "shapes": (job(1), Job({"x": np.zeros((1, 2), np.float32)})),
    "datatypes": (job(1), Job({"x": np.zeros((1, 1), np.int32)})),
}


@pytest.mark.parametrize(("left", "right"), APART.values(), ids=APART.keys())
def test_what_differs_rides_apart(model: Doubling, left: Job, right: Job) -> None:
    one = batcher(model)
    busy(model, one)
    futures = [one.submit(each) for each in (left, right, left, right)]
    model.go.set()
    wait(futures, WAIT)
    assert model.sizes == [1, 2, 2]
    assert {run.dtype.char + str(run.shape[1:]) for run in model.runs[1:]} == {
        each.inputs["x"].dtype.char + str(each.inputs["x"].shape[1:]) for each in (left, right)
    }
    one.stop(WAIT)


def test_how_a_request_waits_and_is_answered_does_not_keep_it_apart(model: Doubling) -> None:
    one = batcher(model)
    busy(model, one)
    futures = [
        one.submit(job(1, timeout=60_000_000)),
        one.submit(job(2, priority=1)),
        one.submit(job(3, binary_data_output=True)),
        one.submit(job(4)),
    ]
    model.go.set()
    wait(futures, WAIT)
    assert model.sizes == [1, 4]
    one.stop(WAIT)


def test_declared_inputs_are_padded_to_the_longest() -> None:
    runs: list[Array] = []
    go = threading.Event()

    def total(inputs: dict[str, Array]) -> dict[str, Array]:
        runs.append(inputs["x"])
        assert go.wait(WAIT)
        return {"y": np.where(inputs["x"] < 0, 0, inputs["x"]).sum(axis=1, keepdims=True)}

    one = Batcher("m", [total], 100, S(8, ragged={"x": -1}))
    widths = [1, 3, 2]
    futures = [one.submit(Job({"x": np.ones((1, 1), np.int64)}))]
    futures += [one.submit(Job({"x": np.ones((1, width), np.int64)})) for width in widths]
    go.set()
    assert [numbers(future.result(WAIT)) for future in futures] == [[1], [1], [3], [2]]
    assert runs[-1].tolist() == [[1, -1, -1], [1, 1, 1], [1, 1, -1]]
    one.stop(WAIT)


class Ragged(Model):
    inputs = (TensorSpec("x", "INT64", (-1, -1)),)
    outputs = (TensorSpec("y", "INT64", (-1, -1)),)
    batching = S(8, ragged={"x": 0})


def test_ragged_inputs_are_refused_where_outputs_could_show_the_padding() -> None:
    with pytest.raises(BadInput, match="variable dimension"):
        for_model(Ragged(), 10)


def test_a_full_queue_is_an_answer_with_the_seconds_that_it_will_take(model: Doubling) -> None:
    one = batcher(model, S(1), limit=3)
    first = busy(model, one)
    waiting = [one.submit(job(number)) for number in range(3)]
    with pytest.raises(Overloaded, match="3 requests are waiting") as refused:
        one.submit(job(9))
    assert refused.value.retry_after == 1
    assert waiting[0].cancel()
    late = one.submit(job(7))
    for _ in range(SURE):
        one._learn([Seat(1, None, 0.0, weight=1, ticket=late)], 5.0)
    with pytest.raises(Overloaded) as refused:
        one.submit(job(9))
    assert refused.value.retry_after == 15
    model.go.set()
    assert [numbers(future.result(WAIT)) for future in (first, waiting[1], waiting[2], late)] == [[-2], [2], [4], [14]]
    one.stop(WAIT)


def test_a_level_has_a_bound_of_its_own(model: Doubling) -> None:
    levels = S(4, priority_levels=2, default_priority_level=2, queue_policies={2: QueuePolicy(max_queue_size=1)})
    one = batcher(model, levels)
    busy(model, one)
    futures = [one.submit(job(1)), one.submit(job(2, priority=1)), one.submit(job(3, priority=1))]
    with pytest.raises(Overloaded, match="1 requests are waiting"):
        one.submit(job(4))
    model.go.set()
    wait(futures, WAIT)
    one.stop(WAIT)


def test_the_urgent_go_first(model: Doubling) -> None:
    one = batcher(model, S(2, priority_levels=3, default_priority_level=2))
    busy(model, one)
    asked = [(1, 3), (2, 0), (3, 1), (4, 2), (5, 1), (6, 3)]
    futures = [one.submit(job(number, priority=level)) for number, level in asked]
    model.go.set()
    wait(futures, WAIT)
    assert [value for run in model.runs[1:] for value in run.ravel().tolist()] == [3, 5, 2, 4, 1, 6]
    one.stop(WAIT)


@pytest.mark.parametrize("name", ["timeout", "priority"])
@pytest.mark.parametrize("value", [-1, 1.5, "1", True], ids=repr)
def test_a_timeout_or_priority_that_is_none_is_refused(model: Doubling, name: str, value: Any) -> None:
    one = batcher(model)
    with pytest.raises(BadInput, match=f"parameters.{name}"):
        one.submit(job(1, **{name: value}))
    assert one.queued == 0
    one.stop(WAIT)


def test_who_is_late_leaves_alone_in_the_queue_and_on_board(model: Doubling) -> None:
    one = batcher(model)
    model.go.clear()
    riding = one.submit(job(1, timeout=60_000))
    assert model.entered.acquire(timeout=WAIT)
    futures = [one.submit(job(2)), one.submit(job(3, timeout=20_000)), one.submit(job(4, timeout=60_000_000))]
    with pytest.raises(Deadline, match="in the queue"):
        futures[1].result(WAIT)
    with pytest.raises(Deadline, match="not computed yet"):
        riding.result(WAIT)
    assert not model.go.is_set(), "they were answered while the model stood still"
    model.go.set()
    assert [numbers(futures[n].result(WAIT)) for n in (0, 2)] == [[4], [8]]
    assert [run.ravel().tolist() for run in model.runs] == [[1], [2, 4]]
    one.stop(WAIT)


def test_a_queues_own_timeout_refuses_or_delays(model: Doubling) -> None:
    one = batcher(model, S(4, queue_policy=QueuePolicy(default_timeout=0.02)))
    busy(model, one)
    with pytest.raises(Deadline):
        one.submit(job(1)).result(WAIT)
    model.go.set()
    one.stop(WAIT)
    levels = S(
        1,
        priority_levels=2,
        default_priority_level=1,
        queue_policies={1: QueuePolicy("delay", default_timeout=1e-6)},
    )
    delaying = batcher(model, levels)
    busy(model, delaying)
    del model.runs[:]
    futures = [delaying.submit(job(1)), delaying.submit(job(2, priority=2)), delaying.submit(job(3, priority=2))]
    model.go.set()
    assert [numbers(future.result(WAIT)) for future in futures] == [[2], [4], [6]]
    assert [run.ravel().tolist() for run in model.runs] == [[2], [3], [1]]
    delaying.stop(WAIT)


def test_instances_overlap() -> None:
    meeting = threading.Barrier(2, timeout=WAIT)

    def compute(inputs: dict[str, Array]) -> dict[str, Array]:
        meeting.wait()
        return {"y": inputs["x"]}

    one = Batcher("m", [compute] * 2, 100, S(1))
    futures = [one.submit(job(number)) for number in range(4)]
    assert [numbers(future.result(WAIT)) for future in futures] == [[0], [1], [2], [3]]
    one.stop(WAIT)


def test_answers_in_the_order_of_requests_where_asked_for() -> None:
    first_may_go, told = threading.Event(), []

    def compute(inputs: dict[str, Array]) -> dict[str, Array]:
        if inputs["x"][0, 0] == 0:
            assert first_may_go.wait(WAIT)
        return {"y": inputs["x"]}

    one = Batcher("m", [compute] * 2, 100, S(1, preserve_ordering=True))
    futures = [one.submit(job(number)) for number in range(5)]
    for number, future in enumerate(futures):
        future.add_done_callback(lambda _, number=number: told.append(number))
    until(lambda: one.queued == 0 and one._idle, "the other four are computed")
    assert told == []
    first_may_go.set()
    wait(futures, WAIT)
    until(lambda: len(told) == 5, "all are told")
    assert told == [0, 1, 2, 3, 4]
    one.stop(WAIT)


def test_stop_refuses_what_waits_and_lets_end_what_runs(model: Doubling) -> None:
    one = batcher(model)
    running = busy(model, one)
    waiting, left = one.submit(job(1)), one.submit(job(2))
    left.cancel()
    stopper = threading.Thread(target=one.stop, args=(WAIT,))
    stopper.start()
    with pytest.raises(NotReady):
        waiting.result(WAIT)
    with pytest.raises(CancelledError):
        left.result(WAIT)
    model.go.set()
    assert numbers(running.result(WAIT)) == [-2]
    stopper.join(WAIT)
    with pytest.raises(NotReady):
        one.submit(job(3))
    one.stop(WAIT)


def test_every_run_is_told_to_the_metrics(model: Doubling) -> None:
    told: list[int] = []
    one = batcher(model, observe=lambda rows, waited, seconds: told.append(rows))
    busy(model, one)
    futures = [one.submit(job(1, 2)), one.submit(job(3))]
    model.go.set()
    wait(futures, WAIT)
    until(lambda: len(told) == 2, "told")
    assert told == [1, 3]
    one.stop(WAIT)


# On an event loop.


async def asked(one: Batcher, *jobs: Job) -> list[Computed]:
    return await asyncio.gather(*(asyncio.wrap_future(one.submit(each)) for each in jobs))


def test_what_comes_in_one_turn_of_a_loop_rides_together(model: Doubling) -> None:
    one = batcher(model)
    results = asyncio.run(asked(one, *(job(number) for number in range(8))))
    assert [numbers(computed) for computed in results] == [[2 * number] for number in range(8)]
    assert model.sizes == [8]
    one.stop(WAIT)


def quick_on_loop(one: Batcher, times: int = PROBATION * 20) -> None:
    async def many() -> None:
        for number in range(times):
            (computed,) = await asked(one, job(number))
            assert numbers(computed) == [2 * number]

    asyncio.run(many())


def test_quick_runs_move_to_the_loops_thread_and_a_poisoned_row_still_harms_nobody(model: Doubling) -> None:
    one = batcher(model)
    quick_on_loop(one)
    assert threading.get_ident() not in model.threads[:PROBATION]
    assert threading.get_ident() in model.threads
    model.poison = {3}

    async def mixed() -> list[Any]:
        futures = [asyncio.wrap_future(one.submit(job(number))) for number in range(8)]
        return await asyncio.gather(*futures, return_exceptions=True)

    results = asyncio.run(mixed())
    assert isinstance(results.pop(3), ValueError)
    assert [numbers(computed) for computed in results] == [[0], [2], [4], [8], [10], [12], [14]]
    one.stop(WAIT)


def test_a_model_that_wants_a_thread_of_its_own_keeps_it(model: Doubling) -> None:
    one = batcher(model, on_loop=False)
    quick_on_loop(one)
    assert threading.get_ident() not in model.threads
    assert len(set(model.threads)) == 1
    one.stop(WAIT)


def test_a_model_that_cannot_run_on_a_loop_goes_back_to_its_thread(model: Doubling) -> None:
    def with_a_loop_of_its_own(inputs: dict[str, Array]) -> dict[str, Array]:
        computed = model(inputs)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return computed
        raise RuntimeError("asyncio.run() cannot be called from a running event loop")

    one = Batcher("m", [with_a_loop_of_its_own], 100, S(8))
    quick_on_loop(one)
    assert model.threads.count(threading.get_ident()) == 1, "tried there once, and never again"
    one.stop(WAIT)


def test_the_loop_is_not_held_by_a_model_that_becomes_slow(model: Doubling) -> None:
    one = batcher(model)
    quick_on_loop(one)
    before = len(model.threads)
    slow = threading.Event()

    def slowly(inputs: dict[str, Array]) -> dict[str, Array]:
        slow.wait(0.01)
        return model(inputs)

    one._instances[0].compute = slowly
    quick_on_loop(one, 20)
    here = [thread == threading.get_ident() for thread in model.threads[before:]]
    assert here.count(True) <= 1, "one long run on the loop closes the way"
    one.stop(WAIT)


# Deadlines.


def test_deadlines_of_answered_requests_keep_nothing_alive() -> None:
    timeouts = Timeouts()
    gone = [Ticket(job(number), 0.0, 0, lambda: None) for number in range(3 * SWEEP)]
    for ticket in gone:
        timeouts.add(60.0, ticket)
        ticket.set_result(Computed({}, 0, 0))
    assert len(timeouts) <= SWEEP
    late, later = Ticket(job(1), 0.0, 0, lambda: None), Ticket(job(2), 0.0, 0, lambda: None)
    timeouts.add(2.0, later)
    timeouts.add(1.0, late)
    assert timeouts.due(1.5) == [late]
    assert timeouts.earliest == 2.0
    del later, ticket, gone
    assert timeouts.due(100.0) == []
    assert timeouts.earliest is None
