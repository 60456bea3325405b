"""Replicas that die, and bytes that are no requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket

import pytest
from routing.rig import KEY, Replica, Seen, echo, looped, rig, until

from relight.local.serving.context import RouterSettings
from relight.local.serving.types import Address, RevisionLimits
from relight.local.serving.upstream import PEEK_AFTER, Pools, UpstreamConnection

GET = b"GET /default/echo/ HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def die(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Before the first byte of an answer."""
    raise ConnectionResetError


async def die_in_the_middle(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
    await writer.drain()
    await asyncio.sleep(0.01)
    raise ConnectionResetError


async def die_between_chunks(
    r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n")
    await writer.drain()
    writer.close()
    raise ConnectionResetError


async def die_in_the_head(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-le")
    await writer.drain()
    raise ConnectionResetError


async def speak_nonsense(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")


async def switch_unasked(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nraw")


@pytest.mark.parametrize("handler", [die, die_in_the_head, speak_nonsense, switch_unasked])
def test_no_answer_to_a_post_is_502(handler: object) -> None:
    @looped
    async def check() -> None:
        async with rig() as r:
            replica = await r.replica(handler)  # type: ignore[arg-type]
            answer = await r.post(b"x", "/default/echo/v1/embeddings")
            assert answer.status == 502
            assert json.loads(answer.body)["error"]["code"] == "replica_lost"
            # It may have been run: it is not run again.
            assert len(replica.seen) == 1
            assert (await r.post(b"x" * 300_000)).status == 502

    check()


@pytest.mark.parametrize("handler", [die_in_the_middle, die_between_chunks])
def test_an_answer_that_breaks_off_is_cut(handler: object) -> None:
    @looped
    async def check() -> None:
        async with rig() as r:
            await r.replica(handler)  # type: ignore[arg-type]
            answer = await r.get()
            assert (answer.status, answer.whole) == (200, False)

    check()


@looped
async def test_what_is_idempotent_is_asked_again_elsewhere() -> None:
    async with rig() as r:
        fail = [True]

        async def once(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if fail.pop() if fail else False:
                raise ConnectionResetError
            await echo(r, seen, reader, writer)

        replica = await r.replica(once)
        assert (await r.get()).body == b"r0"
        assert len(replica.seen) == 2
    async with rig() as r:
        # But not for ever: a request that kills its replica must not go through all of them.
        replica = await r.replica(die)
        assert (await r.get()).status == 502
        assert len(replica.seen) == 3


@looped
async def test_refused_connection_goes_to_another_replica() -> None:
    async with rig() as r:
        dead = await r.replica()
        await dead.stop()
        alive = await r.replica()
        bodies = [(await r.post(b"")).body for _ in range(6)]
        assert bodies == [b"r1"] * 6
        assert len(alive.seen) == 6
        assert r.errors == [(KEY, "r0")]
        assert r.wakes == []


@looped
async def test_refused_by_the_only_replica_is_held_until_there_is_another() -> None:
    async with rig() as r:
        dead = await r.replica()
        assert (await r.get()).status == 200
        await dead.stop()
        asked = [asyncio.ensure_future(r.post(b"x" * size)) for size in (1, 1, 300_000)]
        await until(lambda: r.gate.held == 3, "held again")
        assert r.wakes == [KEY]
        assert set(r.errors) == {(KEY, "r0")}
        await r.gate.remove("r0")
        await r.replica()
        assert [answer.status for answer in await asyncio.gather(*asked)] == [200, 200, 200]


@looped
async def test_a_pooled_connection_that_the_replica_closed() -> None:
    """Also where the close is only in the kernel yet: a POST is not sent into it."""

    async with rig() as r:
        replica = await r.replica()
        client = await r.client()
        post = b"POST /default/echo/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"
        for _ in range(3):
            await client.send(post)
            assert (await client.answer()).status == 200
            await asyncio.sleep(0.06)
            for writer in list(replica._writers):
                with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as twin:
                    twin.shutdown(socket.SHUT_RDWR)
        assert replica.connections == 3


@looped
async def test_a_close_that_only_the_kernel_knows_of() -> None:
    """The loop has not come to the event yet: the pool asks the kernel before a POST is sent into nowhere."""
    clock = [100.0]
    pools = Pools(lambda: clock[0])
    pools.start(30.0)
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        address = Address("127.0.0.1", listener.getsockname()[1])
        older, younger = UpstreamConnection(address, pools), UpstreamConnection(address, pools)
        peers = []
        for connection in (older, younger):
            await asyncio.get_running_loop().create_connection(lambda one=connection: one, *address)
            # A loop that is closed over an open transport waits for it for ever: also where a check fails.
            stack.callback(connection.abort)
            peers.append(stack.enter_context(listener.accept()[0]))
            pools.put(connection)
        clock[0] += PEEK_AFTER * 2
        peers[1].close()
        # The younger one comes first; it is dropped, and the other is as good as ever.
        assert pools.take(address) is older
        pools.put(older)
        clock[0] += PEEK_AFTER * 2
        peers[0].close()
        assert pools.take(address) is None
        assert len(pools) == 0


@looped
async def test_unasked_bytes_on_an_idle_connection_are_no_answer() -> None:
    async def twice(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        one = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"
        writer.write(one + b"right" + one + b"wrong")

    async with rig() as r:
        replica = await r.replica(twice)
        client = await r.client()
        for _ in range(3):
            await client.send(GET)
            assert (await client.answer()).body == b"right"
        assert replica.connections == 3


# -- requests that are none, or two in one


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(
            b"POST %b\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="length, coding"
        ),
        pytest.param(
            b"POST %b\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", id="coding, length"
        ),
        pytest.param(b"POST %b\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", id="two lengths"),
        pytest.param(b"POST %b\r\nContent-Length: 3, 3\r\n\r\nabc", id="a list of lengths"),
        pytest.param(b"POST %b\r\nContent-Length: +3\r\n\r\nabc", id="signed length"),
        pytest.param(b"POST %b\r\nContent-Length: 0x3\r\n\r\nabc", id="hexadecimal length"),
        pytest.param(b"POST %b\r\nContent-Length: -1\r\n\r\nabc", id="negative length"),
        pytest.param(b"POST %b\r\nContent-Length : 3\r\n\r\nabc", id="space before the colon"),
        pytest.param(b"POST %b\r\nX: a\r\n b\r\n\r\n", id="folded line"),
        pytest.param(b"POST %b\r\n X: a\r\n\r\n", id="folded first line"),
        pytest.param(b"POST %b\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", id="unknown coding"),
        pytest.param(b"POST %b\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", id="another coding first"),
        pytest.param(b"POST %b\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", id="another coding last"),
        pytest.param(b"POST %b\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", id="chunked twice"),
        pytest.param(
            b"POST %b\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", id="control character in the coding"
        ),
        pytest.param(
            b"POST %b\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n", id="two codings"
        ),
        pytest.param(
            b"POST %b\r\nTransfer-Encoding: chunked\r\n\r\n1;a\nb\r\nx\r\n0\r\n\r\n", id="line feed in extension"
        ),
        pytest.param(b"POST %b\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n\r\n", id="negative chunk"),
        pytest.param(b"POST %b\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n", id="no chunk size"),
        pytest.param(b"POST %b\nContent-Length: 0\n\n", id="bare line feeds"),
        pytest.param(b"POST %b\r\nX: a\x00b\r\n\r\n", id="NUL in a value"),
        pytest.param(b"POST %b\r\nX: a\rGET / HTTP/1.1\r\n\r\n", id="bare carriage return"),
        pytest.param(b"POST %b\r\nno colon\r\n\r\n", id="no colon"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="TLS"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSS\r\n\r\n", id="nearly HTTP/2"),
    ],
)
def test_smuggling(request_bytes: bytes) -> None:
    @looped
    async def check() -> None:
        async with rig() as r:
            replica = await r.replica()
            client = await r.client()
            line = b"/default/echo/ HTTP/1.1\r\nHost: localhost"
            hidden = b"GET /default/echo/hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"
            await client.send(request_bytes.replace(b"%b", line) + hidden)
            answer = await client.answer()
            assert (answer.status, answer.headers["connection"]) == (400, "close")
            assert "error" in json.loads(answer.body)
            assert await client.closed()
            # At most the head of what was refused in its body was passed on, never what hid behind it.
            assert not [seen for seen in replica.seen if seen.target != "/" or seen.body]
            assert r.gate.in_flight == 0

    check()


@looped
async def test_chunked_in_http_1_0_is_refused() -> None:
    async with rig() as r:
        replica = await r.replica()
        answer = await r.ask(b"POST /default/echo/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        assert (answer.status, replica.seen) == (400, [])


@looped
async def test_connect_and_upgrades_with_bodies() -> None:
    async with rig() as r:
        replica = await r.replica()
        assert (await r.ask(b"CONNECT evil.example:80 HTTP/1.1\r\nHost: localhost\r\n\r\nraw")).status == 405
        upgrade = b"Host: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 3\r\n\r\nabc"
        assert (await r.ask(b"POST /default/echo/ HTTP/1.1\r\n" + upgrade)).status == 400
        assert replica.seen == []


@looped
async def test_what_is_malformed_comes_after_the_answers_that_are_due() -> None:
    async with rig() as r:
        await r.replica()
        client = await r.client()
        await client.send(GET + GET + b"nonsense\r\n\r\n")
        assert [(await client.answer()).status for _ in range(3)] == [200, 200, 400]
        assert await client.closed()


@looped
async def test_a_body_that_turns_out_malformed_is_not_finished() -> None:
    """Its replica sees the connection end inside the body, never a whole request."""
    bodies: list[str] = []

    async def read(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"0\r\n\r\n")
            bodies.append("whole")
        except asyncio.IncompleteReadError:
            bodies.append("broken")

    async with rig() as r:
        replica = await r.replica(read, read_body=False)
        client = await r.client()
        await client.send(
            b"POST /default/echo/ HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc"
        )
        await until(lambda: len(replica.seen) == 1, "the head arrived")
        await client.send(b"XX5\r\n")
        assert (await client.answer()).status == 400
        await until(lambda: bodies == ["broken"], "the replica saw the break")


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"X: " + b"a" * 70_000, id="one field"),
        pytest.param(b"\r\n".join(b"X-%d: %b" % (n, b"a" * 100) for n in range(700)), id="many fields"),
        pytest.param(b"X: " + b"a" * 300_000, id="more than one read"),
    ],
)
def test_large_heads(head: bytes) -> None:
    @looped
    async def check() -> None:
        async with rig() as r:
            replica = await r.replica()
            answer = await r.ask(b"GET /default/echo/ HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n")
            assert (answer.status, replica.seen) == (431, [])
            # Just under the limit is fine, and the limit is one of each head, not of the connection.
            client = await r.client()
            for _ in range(3):
                await client.send(b"GET /default/echo/ HTTP/1.1\r\nHost: localhost\r\nX: %b\r\n\r\n" % (b"a" * 60_000))
                assert (await client.answer()).status == 200

    check()


@looped
async def test_slow_heads_and_idle_connections() -> None:
    async with rig(settings=RouterSettings(head_timeout=0.05, keep_alive=0.15)) as r:
        await r.replica()
        slow, idle, used = await r.client(), await r.client(), await r.client()
        await slow.send(b"GET /default/echo/ HTTP/1.1\r\nHost: loc")
        answer = await slow.answer()
        assert (answer.status, await slow.closed()) == (408, True)
        await used.send(GET)
        assert (await used.answer()).status == 200
        # Nothing was asked: nothing is answered.
        assert await idle.closed()
        assert await used.closed()


@looped
async def test_old_pool_connections_are_closed() -> None:
    async with rig(settings=RouterSettings(pool_idle=0.05)) as r:
        replica = await r.replica()
        assert (await r.get()).status == 200
        await until(lambda: not replica._writers, "the pooled connection was closed")
        assert (await r.get()).status == 200


@looped
async def test_an_address_where_nobody_ever_listened() -> None:
    async with rig() as r:
        r.gate.add("ghost", Address("127.0.0.1", 1))
        asked = asyncio.ensure_future(r.get())
        await until(lambda: r.errors == [(KEY, "ghost")], "reported")
        assert (r.gate.held, r.wakes) == (1, [KEY])
        await r.replica()
        assert (await asked).status == 200


@looped
async def test_tries_are_not_spent_on_the_connections_of_one_dead_replica() -> None:
    """It answered three at once, so three connections to it are kept; then it takes no more, and drops what it has."""
    asked = 0

    async def three(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        if asked > 3:
            raise ConnectionResetError
        await until(lambda: asked == 3, "three at once")
        await echo(r, seen, reader, writer)

    async with rig(RevisionLimits(container_concurrency=3)) as r:
        first = await r.replica(three)
        assert {answer.status for answer in await asyncio.gather(*[r.get() for _ in range(3)])} == {200}
        assert first.connections == 3
        second = await r.replica()
        assert first._server is not None
        first._server.close()
        first._server = None
        answer = await r.get()
        assert answer.status == 200
        assert len(second.seen) == 1
        assert asked == 4, "the dead one was asked once"
