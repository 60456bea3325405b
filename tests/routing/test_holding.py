"""Requests that come while there is no replica, or none is free."""

from __future__ import annotations

import asyncio
import json

import pytest
from routing.rig import KEY, Answer, Client, Replica, Seen, looped, rig, until

from relight.base.errors import LoadFailed
from relight.decide.admission import HoldLimits
from relight.local.serving.types import RevisionKey, RevisionLimits, RouteTarget

GET = b"GET /default/echo/ HTTP/1.1\r\nHost: localhost\r\n\r\n"


@looped
async def test_one_wake_for_fifty_and_a_large_post() -> None:
    async with rig() as r:
        replica = await r.replica(add=False)
        asked = [asyncio.ensure_future(r.get(f"/default/echo/{n}")) for n in range(50)]
        large = asyncio.ensure_future(r.post(b"x" * 5_000_000))
        await until(lambda: r.gate.held == 51, "51 held")
        # The large body waits in the client and in the sockets, not here.
        assert r.router.buffered_bytes < 1_000_000
        assert (r.wakes, r.gate.in_flight) == ([KEY], 0)
        r.gate.add(replica.name, replica.address)
        answers = await asyncio.gather(*asked, large)
        assert {answer.status for answer in answers} == {200}
        assert len(answers[-1].body) == 5_000_000
        assert len(replica.seen) == 51
        assert r.wakes == [KEY]
        (key, replica_id, seconds), *more = r.firsts
        assert (key, replica_id, more) == (KEY, "r0", [])
        assert 0 < seconds < 20


@looped
async def test_the_queue_is_bounded_and_full_is_an_answer() -> None:
    async with rig(hold=HoldLimits(max_requests=8, retry_after=2.5)) as r:
        replica = await r.replica(add=False)
        asked = [asyncio.ensure_future(r.post(b"x" * 1_000_000, "/default/echo/v2/infer")) for _ in range(100)]
        # The others are refused while nothing has been woken yet.
        await until(lambda: sum(task.done() for task in asked) == 92, "92 refused")
        assert r.gate.held == 8
        refused = [task.result() for task in asked if task.done()]
        for answer in refused:
            assert (answer.status, answer.headers["retry-after"], answer.whole) == (503, "3", True)
            assert "the limit is 8" in json.loads(answer.body)["error"]
        assert r.router.buffered_bytes < 8 * 400_000
        r.gate.add(replica.name, replica.address)
        served = [answer for answer in await asyncio.gather(*asked) if answer.status == 200]
        assert len(served) == len(replica.seen) == 8


@looped
async def test_the_queue_is_bounded_in_bytes() -> None:
    async with rig(hold=HoldLimits(max_bytes=50_000)) as r:
        replica = await r.replica(add=False)
        asked = [asyncio.ensure_future(r.post(b"x" * 20_000)) for _ in range(5)]
        await until(lambda: sum(task.done() for task in asked) == 3, "3 refused")
        r.gate.add(replica.name, replica.address)
        assert sorted(answer.status for answer in await asyncio.gather(*asked)) == [200, 200, 503, 503, 503]


@pytest.mark.parametrize("size", [0, 10, 20_000_000], ids=["no body", "small body", "large body"])
def test_whoever_hangs_up_while_held_is_not_run(size: int) -> None:
    @looped
    async def check() -> None:
        async with rig() as r:
            replica = await r.replica(add=False)
            clients: list[Client] = []
            for number in range(4):
                client = await r.client()
                head = b"POST /default/echo/%d HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
                client.writer.write(head % (number, size) + b"x" * size)
                clients.append(client)
            await until(lambda: r.gate.held == 4, "4 held")
            clients[2].abort()
            if size < 65536:
                clients[0].close()
                await until(lambda: r.gate.held == 2, "2 have left")
            else:
                # A body that fills the sockets hides the end behind it: it is noticed once the body is passed on.
                clients[0].abort()
            r.gate.add(replica.name, replica.address)
            for index in (1, 3):
                assert (await clients[index].answer()).status == 200
            assert sorted(seen.target for seen in replica.seen) == ["/1", "/3"]

    check()


@looped
async def test_a_hang_up_behind_a_body_that_is_not_read() -> None:
    """Reading stopped at the bound, so the loop cannot see the end: the kernel is asked before it is passed on."""
    async with rig() as r:
        replica = await r.replica(add=False)
        client = await r.client()
        head = b"POST /default/echo/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000000\r\n\r\n"
        await client.send(head + b"x" * 100_000)
        await until(lambda: r.gate.held == 1 and r.router.buffered_bytes == 100_000, "held, and reading has stopped")
        client.abort()
        await asyncio.sleep(0.02)
        assert r.gate.held == 1
        r.gate.add(replica.name, replica.address)
        assert (await r.get()).status == 200
        assert replica.connections == 1


@looped
async def test_a_hang_up_in_flight_cancels_the_replica() -> None:
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def long(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        entered.set()
        assert await reader.read(1) == b""
        cancelled.set()

    async with rig() as r:
        await r.replica(long)
        client = await r.client()
        await client.send(GET)
        # Admitted is not enough: before the replica has it, a hang-up leaves nothing to cancel there.
        await entered.wait()
        assert r.gate.in_flight == 1
        client.abort()
        await cancelled.wait()
        assert r.gate.in_flight == 0


@looped
async def test_concurrency_is_held_to() -> None:
    running = most = 0

    async def one_at_a_time(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    async with rig(RevisionLimits(container_concurrency=1)) as r:
        await r.replica(one_at_a_time)
        answers = await asyncio.gather(*(r.get() for _ in range(20)))
        assert {answer.status for answer in answers} == {200}
        assert most == 1
        most = 0
        await r.replica(one_at_a_time)
        await asyncio.gather(*(r.get() for _ in range(20)))
        assert most == 2
        # There were replicas all the time: nobody had to be woken.
        assert r.wakes == []


@looped
async def test_longest_hold() -> None:
    async with rig(hold=HoldLimits(max_seconds=0.05, retry_after=4)) as r:
        answer = await r.get("/default/echo/v1/embeddings")
        assert (answer.status, answer.headers["retry-after"]) == (503, "4")
        assert json.loads(answer.body)["error"]["code"] == "not_ready"
        answer = await r.post(b"x" * 500_000)
        assert (answer.status, answer.whole) == (503, True)
        # It is a limit of the wait, not of the request.
        await r.replica()
        assert (await r.get()).status == 200


@looped
async def test_a_revision_that_cannot_start_answers_why() -> None:
    async with rig() as r:
        asked = [asyncio.ensure_future(r.get()) for _ in range(3)]
        await until(lambda: r.gate.held == 3, "3 held")
        r.gate.fail(LoadFailed("echo cannot start: ValueError: no weights", retry_after=10))
        answers: list[Answer] = [*await asyncio.gather(*asked), await r.get()]
        for answer in answers:
            assert (answer.status, answer.headers["retry-after"]) == (503, "10")
            assert json.loads(answer.body) == {"error": "echo cannot start: ValueError: no weights"}
        assert r.wakes == [KEY]
        r.gate.recover()
        await r.replica()
        assert (await r.get()).status == 200


@looped
async def test_what_the_autoscaler_is_told() -> None:
    release = asyncio.Event()

    async def wait(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    async with rig(RevisionLimits(container_concurrency=1)) as r:
        loop = asyncio.get_running_loop()
        replica = await r.replica(wait)
        asked = [asyncio.ensure_future(r.get()) for _ in range(3)]
        await until(lambda: r.gate.held == 2, "2 held")
        assert (r.gate.in_flight, r.gate.load(replica.name)) == (1, 1)
        release.set()
        await asyncio.gather(*asked)
        bucket = r.gate.sample(loop.time() + 1)
        assert bucket.requests == 3
        assert bucket.average_concurrency > bucket.average_held > 0


@looped
async def test_drain_waits_for_the_answer_and_others_take_over() -> None:
    release = asyncio.Event()

    async def wait(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nha")
        await release.wait()
        writer.write(b"lf")

    async with rig() as r:
        old = await r.replica(wait)
        client = await r.client()
        await client.send(GET)
        await client.reader.readuntil(b"\r\n\r\nha")
        idle = r.gate.remove(old.name)
        new = await r.replica()
        assert {(await r.get()).body for _ in range(5)} == {b"r1"}
        assert (idle.done(), len(old.seen), len(new.seen)) == (False, 1, 5)
        release.set()
        assert await client.reader.readexactly(2) == b"lf"
        await idle


@looped
async def test_held_requests_go_where_the_traffic_goes_now() -> None:
    """A revision that got no replica has lost its traffic to one that has: nobody waits for the old one."""
    async with rig() as r:
        asked = [asyncio.ensure_future(r.post(b"one")), asyncio.ensure_future(r.get("/default/echo/two"))]
        tagged = asyncio.ensure_future(r.get("/default/old-echo/"))
        await until(lambda: r.gate.held == 2, "two held")
        assert (await tagged).status == 404
        other = RevisionKey("default", "echo-00002")
        replica = await r.replica(name="new", add=False)
        r.gates.ensure(other).add("new", replica.address)
        r.routes.set("default", "echo", (RouteTarget(other, 100),))
        old = r.gate
        old.move()
        answers = await asyncio.gather(*asked)
        assert [answer.status for answer in answers] == [200, 200]
        assert sorted(seen.body for seen in replica.seen) == [b"", b"one"]
        assert (old.held, old.in_flight) == (0, 0)


@looped
async def test_held_requests_of_a_function_that_is_deleted() -> None:
    async with rig() as r:
        asked = asyncio.ensure_future(r.get())
        await until(lambda: r.gate.held == 1, "one held")
        r.routes.remove("default", "echo")
        r.gate.move()
        answer = await asked
        assert (answer.status, b"deleted meanwhile" in answer.body) == (404, True)
