from __future__ import annotations

import asyncio

import pytest
from routing.rig import KEY, looped

from relight.base.errors import Deadline, LoadFailed, NotReady, Overloaded
from relight.decide.admission import HoldLimits
from relight.local.serving.activator import Bucket, Gate, Gates
from relight.local.serving.types import Address, RevisionKey, RevisionLimits

HERE = Address("127.0.0.1", 9)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def gate(
    concurrency: int = 0, hold: HoldLimits | None = None, clock: Clock | None = None
) -> tuple[Gate, list[RevisionKey]]:
    wakes: list[RevisionKey] = []
    limits = RevisionLimits(container_concurrency=concurrency)
    return Gate(KEY, limits, wake=wakes.append, hold=hold, clock=clock or Clock()), wakes


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@looped
async def test_one_wake_for_all_who_wait() -> None:
    one, wakes = gate()
    waiting = [asyncio.ensure_future(one.acquire()) for _ in range(50)]
    await turns()
    assert (one.held, wakes) == (50, [KEY])
    one.add("a", HERE)
    slots = await asyncio.gather(*waiting)
    assert {slot.replica_id for slot in slots} == {"a"}
    assert (one.held, one.in_flight, one.load("a")) == (0, 50, 50)
    for slot in slots:
        one.release(slot)
    await one.remove("a")
    # A new period at zero is a new wake.
    again = asyncio.ensure_future(one.acquire())
    await turns()
    assert wakes == [KEY, KEY]
    again.cancel()


@looped
async def test_first_come_first_served_within_concurrency() -> None:
    one, _ = gate(concurrency=1)
    one.add("a", HERE)
    first = await one.acquire()
    served: list[int] = []

    async def ask(number: int) -> None:
        slot = await one.acquire()
        served.append(number)
        await asyncio.sleep(0)
        one.release(slot)

    tasks = [asyncio.ensure_future(ask(number)) for number in range(5)]
    await turns()
    assert one.held == 5
    one.release(first)
    one.release(first)  # twice is once
    await asyncio.gather(*tasks)
    assert served == [0, 1, 2, 3, 4]
    assert one.in_flight == 0


@looped
async def test_more_concurrency_serves_those_who_wait() -> None:
    one, _ = gate(concurrency=1)
    one.add("a", HERE)
    slots = [await one.acquire()]
    waiting = [asyncio.ensure_future(one.acquire()) for _ in range(3)]
    await turns()
    one.set_limits(RevisionLimits(container_concurrency=3))
    await turns()
    assert [task.done() for task in waiting] == [True, True, False]
    waiting[2].cancel()
    slots += [task.result() for task in waiting[:2]]
    for slot in slots:
        one.release(slot)
    assert (one.held, one.in_flight) == (0, 0)


@looped
async def test_giving_up_leaves_no_trace() -> None:
    one, wakes = gate()
    task = asyncio.ensure_future(one.acquire(nbytes=500))
    await turns()
    assert (one.held, one.held_bytes) == (1, 500)
    task.cancel()
    await turns()
    assert (one.held, one.held_bytes, one.in_flight) == (0, 0, 0)
    # Whoever heard the wake may have given up as well by now: the next request wakes again.
    other = asyncio.ensure_future(one.acquire())
    await turns()
    assert len(wakes) == 2
    # Cancelled in the very turn in which the slot comes: it is given back.
    one.add("a", HERE)
    other.cancel()
    await turns()
    assert other.cancelled()
    assert (one.held, one.in_flight) == (0, 0)


@looped
async def test_bounds_of_the_queue() -> None:
    one, wakes = gate(hold=HoldLimits(max_requests=2, max_bytes=1000, retry_after=3.0))
    tasks = [asyncio.ensure_future(one.acquire(nbytes=100)) for _ in range(2)]
    await turns()
    with pytest.raises(Overloaded, match="limit is 2") as refused:
        await one.acquire()
    assert refused.value.retry_after == 3.0
    tasks.pop().cancel()
    await turns()
    with pytest.raises(Overloaded, match="bytes"):
        await one.acquire(nbytes=901)
    assert (one.held, wakes) == (1, [KEY])
    tasks.pop().cancel()
    await turns()


@looped
async def test_deadlines() -> None:
    clock = Clock()
    one, _ = gate(clock=clock)
    with pytest.raises(Deadline, match="no replica of revision default/echo-00001"):
        await one.acquire(clock() + 0.01)
    two, _ = gate(hold=HoldLimits(max_seconds=0.01, retry_after=7.0), clock=clock)
    with pytest.raises(NotReady) as late:
        await two.acquire(clock() + 5)
    assert late.value.retry_after == 7.0
    assert (one.held, two.held) == (0, 0)


@looped
async def test_remove_waits_for_what_is_in_flight() -> None:
    one, wakes = gate()
    one.add("a", HERE)
    slot = await one.acquire()
    idle = one.remove("a")
    assert one.remove("a") is idle
    assert not idle.done()
    assert (one.replicas, one.load("a")) == ((), 1)
    one.add("b", HERE)
    assert (await one.acquire()).replica_id == "b"
    one.release(slot)
    await idle
    await one.remove("a")
    await one.remove("never seen")
    assert wakes == []


@looped
async def test_the_last_replica_goes_while_somebody_waits() -> None:
    one, wakes = gate(concurrency=1)
    one.add("a", HERE)
    slot = await one.acquire()
    waiting = asyncio.ensure_future(one.acquire())
    await turns()
    assert wakes == []
    idle = one.remove("a")
    assert wakes == [KEY]
    one.release(slot)
    await idle
    await turns()
    assert not waiting.done()
    one.add("b", HERE)
    one.release(await waiting)


@looped
async def test_a_suspect_gets_nothing_until_it_is_added_again() -> None:
    one, wakes = gate()
    one.add("a", HERE)
    one.suspect("a")
    waiting = asyncio.ensure_future(one.acquire())
    await turns()
    assert (one.held, wakes) == (1, [KEY])
    one.add("a", Address("127.0.0.1", 10))
    slot = await waiting
    assert slot.address.port == 10
    one.release(slot)
    one.suspect("a")
    await one.remove("a")


@looped
async def test_a_revision_that_cannot_start() -> None:
    one, wakes = gate()
    waiting = [asyncio.ensure_future(one.acquire()) for _ in range(3)]
    await turns()
    one.fail(LoadFailed("embed cannot start: ValueError", retry_after=10))
    for error in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(error, LoadFailed)
    with pytest.raises(LoadFailed):
        await one.acquire()
    assert (wakes, one.held, one.in_flight) == ([KEY], 0, 0)
    one.recover()
    held = asyncio.ensure_future(one.acquire())
    await turns()
    assert wakes == [KEY, KEY]
    one.recover()  # nothing had failed: nobody is woken twice
    assert wakes == [KEY, KEY]
    one.add("a", HERE)
    one.release(await held)
    # An old replica goes on while a new one cannot start.
    one.fail(LoadFailed("embed cannot start"))
    one.release(await one.acquire())


@looped
async def test_a_revision_that_fails_while_it_is_woken() -> None:
    """The wake may answer at once; then nobody is held."""

    def wake(key: RevisionKey) -> None:
        one.fail(LoadFailed("no such folder"))

    one = Gate(KEY, RevisionLimits(), wake=wake)
    with pytest.raises(LoadFailed):
        await one.acquire()
    assert one.held == 0


@looped
async def test_averages_are_weighted_by_time() -> None:
    clock = Clock()
    one, _ = gate(concurrency=1, clock=clock)
    assert one.sample(clock()) == Bucket(0.0, 0, 0.0)
    one.add("a", HERE)
    slot = await one.acquire()
    waiting = asyncio.ensure_future(one.acquire())
    await turns()
    clock.now += 0.25
    one.release(slot)  # two were there for 0.25 s, one of them held
    clock.now += 0.25
    one.release(await waiting)  # one for 0.25 s
    clock.now += 0.5
    assert one.sample(clock()) == pytest.approx(Bucket(0.75, 2, 0.25))
    clock.now += 1
    assert one.sample(clock()) == Bucket(0.0, 0, 0.0)
    held = await one.acquire()
    clock.now += 1
    assert one.sample(clock()) == Bucket(1.0, 1, 0.0)
    clock.now += 1
    # It is still there, though it came before.
    assert one.sample(clock()) == Bucket(1.0, 0, 0.0)
    one.release(held)
    assert one.requests == 3


@looped
async def test_registry() -> None:
    wakes: list[RevisionKey] = []
    gates = Gates(wakes.append, hold=HoldLimits(max_requests=1))
    one = gates.ensure(KEY, RevisionLimits(container_concurrency=2))
    assert gates.ensure(KEY) is one
    assert one.limits.container_concurrency == 2
    assert gates.ensure(KEY, RevisionLimits(container_concurrency=5)) is one
    assert one.limits.container_concurrency == 5
    assert (gates.get(KEY), len(gates), list(gates)) == (one, 1, [one])
    held = asyncio.ensure_future(one.acquire())
    await turns()
    gates.drop(KEY)
    gates.drop(KEY)
    with pytest.raises(NotReady, match="deleted"):
        await held
    assert gates.get(KEY) is None
