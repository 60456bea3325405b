"""HTTP/2 with prior knowledge through the router, stream by stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from routing.h2peers import H2Client, H2Replica, Handler, Peer, Stream, connected, echo
from routing.rig import KEY, Rig, looped, rig, until

from relight.base.errors import LoadFailed
from relight.decide.admission import HoldLimits
from relight.local.serving.context import RouterSettings
from relight.local.serving.h2client import SIGN
from relight.local.serving.h2frames import Frames, FrameTooLarge, GoAway
from relight.local.serving.h2link import STREAMS, WINDOW
from relight.local.serving.types import Address, RevisionKey, RevisionLimits, RouteTarget
from relight.wire.http import Response

CANCEL, REFUSED, NO_ERROR, INTERNAL = 8, 7, 0, 2
GRPC = ("content-type", "application/grpc")


class H2Rig:
    """A router on loopback, HTTP/2 clients of it, and replicas."""

    def __init__(self, one: Rig) -> None:
        self.rig = one
        self.gate = one.gate
        self.clients: list[H2Client] = []
        self.replicas: list[H2Replica] = []

    async def client(self, **kwargs: bool) -> H2Client:
        client = await connected(self.rig.port, **kwargs)
        self.clients.append(client)
        return client

    async def replica(self, handler: Handler = echo, *, add: bool = True, **kwargs: Any) -> H2Replica:
        replica = H2Replica(handler, **kwargs)
        await replica.start()
        self.replicas.append(replica)
        if add:
            self.gate.add(f"r{len(self.replicas) - 1}", replica.address)
        return replica


@asynccontextmanager
async def h2rig(limits: RevisionLimits | None = None, **kwargs: Any) -> AsyncIterator[H2Rig]:
    async with rig(replace(limits or RevisionLimits(), h2c=True), **kwargs) as one:
        here = H2Rig(one)
        try:
            yield here
        finally:
            for client in here.clients:
                client.abort()
            for replica in here.replicas:
                await replica.stop()
            await until(lambda: one.gate.in_flight == one.gate.held == 0, "nothing in flight")


@looped
async def test_a_tag_by_its_header() -> None:
    async with h2rig() as r:
        stable, tagged = await r.replica(), await r.replica(add=False)
        key = RevisionKey("default", "echo-00002")
        r.rig.gates.ensure(key, RevisionLimits(h2c=True)).add("next", tagged.address)
        r.rig.routes.set("default", "echo", (RouteTarget(KEY, 100), RouteTarget(key, 0, "next")))
        r.rig.routes.by_tag_header = lambda: True
        client = await r.client()
        await client.call(b"", "/", ("knative-serving-tag", "next"))
        await client.call(b"", "/", ("knative-serving-tag", "none"))
        assert (len(stable.seen), len(tagged.seen)) == (1, 1)


@looped
async def test_there_and_back() -> None:
    async with h2rig() as r:
        replica = await r.replica()
        client = await r.client()
        answer = await client.call(
            b"hello",
            "/there?x=1",
            ("te", "trailers"),
            ("x-request-id", "r-1"),
            ("x-own", "1"),
            ("relight-timing", "1"),
        )
        assert (answer.headers[":status"], answer.body, answer.ended) == ("200", b"hello", True)
        assert answer.headers["path"] == "/there?x=1"
        assert answer.headers["x-request-id"] == "r-1"
        assert answer.headers["server-timing"].startswith("hold;dur=0.000")
        assert answer.trailers == {"bytes": "5"}
        (seen,) = replica.seen
        assert seen.headers[":authority"] == "echo.default.localhost"
        assert seen.headers[":scheme"] == "http"
        assert seen.headers["te"] == "trailers"
        assert seen.headers["x-own"] == "1"
        assert seen.headers["x-forwarded-for"] == "127.0.0.1"
        assert seen.headers["x-forwarded-host"] == "echo.default.localhost"
        assert seen.headers["x-forwarded-proto"] == "http"
        assert "x-forwarded-prefix" not in seen.headers
        assert len(seen.headers["traceparent"]) == 55


@looped
async def test_the_path_form_serves_who_can_use_it() -> None:
    async with h2rig() as r:
        replica = await r.replica()
        client = await r.client()
        answer = await client.call(b"", "/default/echo/there", authority="localhost")
        assert answer.headers["path"] == "/there"
        assert replica.seen[0].headers["x-forwarded-prefix"] == "/default/echo"
        assert replica.seen[0].headers[":authority"] == "echo.default.localhost"
        index = await client.call(b"", "/", authority=f"127.0.0.1:{r.rig.port}", method="GET")
        assert json.loads(index.body)["functions"][0]["name"] == "echo"


@looped
async def test_pages_of_the_router() -> None:
    async with h2rig(pages={b"/own": lambda: Response(200, (("content-type", "text/plain"),), b"mine")}) as r:
        client = await r.client()
        assert (await client.call(b"", "/own?q", authority="localhost", method="GET")).body == b"mine"
        unknown = await client.call(b"", "/other?q", authority="localhost", method="GET")
        assert unknown.headers[":status"] == "404"
        assert b"/other names no function" in unknown.body


@looped
async def test_many_streams_over_one_connection_each_way() -> None:
    async with h2rig() as r:
        replica = await r.replica()
        client = await r.client()
        bodies = [bytes([number]) * (number * 700) for number in range(1, 101)]
        answers = await asyncio.gather(*(client.call(body) for body in bodies))
        assert [answer.body for answer in answers] == bodies
        assert len(replica.peers) == 1
        other = await r.client()
        assert (await other.call(b"x")).body == b"x"
        assert len(replica.peers) == 1
        assert r.rig.router.buffered_bytes == 0


@looped
async def test_a_replica_that_takes_few_streams_gets_several_connections() -> None:
    held: list[tuple[Peer, Stream]] = []

    async def hold(replica: H2Replica, peer: Peer, stream: Stream) -> None:
        held.append((peer, stream))

    async with h2rig() as r:
        replica = await r.replica(hold, streams=2)
        client = await r.client()
        asked = [client.ask(end=True)]
        await until(lambda: len(held) == 1, "the first")
        asked += [client.ask(end=True) for _ in range(4)]
        await until(lambda: len(held) == 5, "all five")
        assert len(replica.peers) == 3
        for peer, stream in held:
            peer.head(stream.number, [(":status", "204")], end=True)
        for stream in asked:
            assert (await stream.whole()).headers[":status"] == "204"


# Held at zero.


@looped
async def test_held_at_zero_and_woken_once() -> None:
    async with h2rig() as r:
        replica = await r.replica(add=False)
        client = await r.client()
        asked = [asyncio.ensure_future(client.call(b"small %d" % number)) for number in range(50)]
        large = asyncio.ensure_future(client.call(b"x" * 3_000_000))
        await until(lambda: r.gate.held == 51, "51 held")
        await until(lambda: r.rig.router.buffered_bytes >= WINDOW, "the large one fills its window")
        # The rest of it waits at the client.
        assert r.rig.router.buffered_bytes < WINDOW + 10_000
        assert r.rig.wakes == [KEY]
        r.gate.add("r0", replica.address)
        answers = await asyncio.gather(*asked)
        assert [answer.body for answer in answers] == [b"small %d" % number for number in range(50)]
        assert len((await large).body) == 3_000_000
        assert len(replica.peers) == 1
        assert [(key, name) for key, name, _ in r.rig.firsts] == [(KEY, "r0")]


@looped
async def test_who_gives_up_while_held_is_not_run() -> None:
    async with h2rig() as r:
        replica = await r.replica(add=False)
        client, other = await r.client(), await r.client()
        first, second = client.ask(end=True), client.ask(end=True)
        other.ask(end=True)
        await until(lambda: r.gate.held == 3, "3 held")
        client.reset(first.number, CANCEL)
        other.abort()
        await until(lambda: r.gate.held == 1, "1 held")
        r.gate.add("r0", replica.address)
        assert (await second.whole()).headers[":status"] == "200"
        assert len(replica.seen) == 1


@looped
async def test_full_late_and_broken_are_answers() -> None:
    async with h2rig(RevisionLimits(timeout=0.3), hold=HoldLimits(max_requests=2, retry_after=2.5)) as r:
        client = await r.client()
        held = [client.ask(end=True), client.ask("/m", GRPC)]
        await until(lambda: r.gate.held == 2, "2 held")
        plain, call = await client.call(), await client.call(b"", "/m", GRPC)
        assert (plain.headers[":status"], plain.headers["retry-after"]) == ("503", "3")
        assert "the limit is 2" in json.loads(plain.body)["error"]
        assert (call.headers[":status"], call.headers["grpc-status"]) == ("200", "8")
        assert call.headers["grpc-retry-pushback-ms"] == "2500"
        assert call.headers["content-type"] == "application/grpc"
        assert "the limit is 2" in call.headers["grpc-message"]
        late = [await stream.whole() for stream in held]
        assert late[0].headers[":status"] == "504"
        assert (late[1].headers[":status"], late[1].headers["grpc-status"]) == ("200", "4")
        waiting = client.ask("/m", GRPC)
        await until(lambda: r.gate.held == 1, "1 held")
        r.gate.fail(LoadFailed("echo cannot start: größer %"))
        failed = await waiting.whole()
        assert failed.headers["grpc-status"] == "14"
        assert failed.headers["grpc-message"] == "echo cannot start: gr%C3%B6%C3%9Fer %25"
        r.gate.recover()


@looped
async def test_a_refused_body_is_not_waited_for() -> None:
    async with h2rig() as r:
        client = await r.client()
        stream = client.ask("/none/there", authority="localhost")
        await stream.until(lambda one: one.reset is not None)
        assert (stream.headers[":status"], stream.ended, stream.reset) == ("404", True, NO_ERROR)


# Streams, flow control.


@looped
async def test_both_directions_at_once() -> None:
    async def chat(replica: H2Replica, peer: Peer, stream: Stream) -> None:
        peer.head(stream.number, [(":status", "200")])
        said = 0
        while not stream.ended:
            stream.changed.clear()
            await stream.changed.wait()
            await peer.send(stream.number, stream.body[said:])
            said = len(stream.body)
        await peer.send(stream.number, b"", end=True)

    async with h2rig() as r:
        await r.replica(chat)
        client = await r.client()
        stream = client.ask()
        # The answer begins before the request has a body: nothing is collected.
        await stream.until(lambda one: bool(one.headers))
        for word in (b"one ", b"two ", b"three"):
            await client.send(stream.number, word)
            await stream.until(lambda one, word=word: one.body.endswith(word))  # type: ignore[misc]
        await client.send(stream.number, b"", end=True)
        assert (await stream.whole()).body == b"one two three"


@looped
async def test_a_slow_reader_stops_its_own_stream_only() -> None:
    size = 4_000_000

    async def pour(replica: H2Replica, peer: Peer, stream: Stream) -> None:
        peer.head(stream.number, [(":status", "200")])
        await peer.send(stream.number, b"x" * size, end=True)

    async with h2rig() as r:
        await r.replica(pour)
        slow, fast = await r.client(read=False), await r.client()
        waiting = slow.ask(end=True)
        await until(lambda: len(waiting.body) == 65535, "the client's window is full")
        assert len((await fast.call()).body) == size
        # What the replica still has to send waits there: here are at most the window and what was being passed on.
        assert r.rig.router.buffered_bytes <= WINDOW
        slow.read = True
        slow.accept(waiting)
        assert len((await waiting.whole()).body) == size


@looped
async def test_a_slow_replica_stops_the_client() -> None:
    async def hold(replica: H2Replica, peer: Peer, stream: Stream) -> None:
        pass

    async with h2rig() as r:
        replica = await r.replica(hold, read=False)
        client = await r.client()
        stream = client.ask()
        sending = asyncio.ensure_future(client.send(stream.number, b"x" * 4_000_000, end=True))
        await until(lambda: len(replica.seen) == 1 and len(replica.seen[0].body) == 65535, "the replica's is full")
        await until(lambda: r.rig.router.buffered_bytes >= WINDOW - 65535, "and so is the router's")
        assert r.rig.router.buffered_bytes <= WINDOW + 1000
        seen, peer = replica.seen[0], replica.peers[0]
        peer.read = True
        peer.accept(seen)
        await sending
        await seen.until(lambda one: one.ended)
        assert len(seen.body) == 4_000_000
        peer.head(seen.number, [(":status", "200")], end=True)
        assert (await stream.whole()).ended


# Ends.


@looped
async def test_resets_pass_through_with_their_code() -> None:
    async def hold(replica: H2Replica, peer: Peer, stream: Stream) -> None:
        pass

    async with h2rig() as r:
        replica = await r.replica(hold)
        client = await r.client()
        first = client.ask()
        await until(lambda: len(replica.seen) == 1, "seen")
        client.reset(first.number, CANCEL)
        await replica.seen[0].whole()
        assert replica.seen[0].reset == CANCEL
        await until(lambda: r.gate.in_flight == 0, "the slot is free")
        second, third = client.ask(), client.ask(end=True)
        await until(lambda: len(replica.seen) == 3, "seen")
        peer = replica.peers[0]
        peer.reset(replica.seen[1].number, REFUSED)
        assert (await second.whole()).reset == REFUSED
        peer.head(replica.seen[2].number, [(":status", "200")])
        await peer.send(replica.seen[2].number, b"half")
        peer.reset(replica.seen[2].number, INTERNAL)
        assert ((await third.whole()).body, third.reset) == (b"half", INTERNAL)
        # The connections have not suffered.
        fourth = client.ask(end=True)
        await until(lambda: len(replica.seen) == 4, "seen")
        peer.head(replica.seen[3].number, [(":status", "204")], end=True)
        assert (await fourth.whole()).headers[":status"] == "204"


@looped
async def test_a_client_that_leaves_takes_its_streams_with_it() -> None:
    async def hold(replica: H2Replica, peer: Peer, stream: Stream) -> None:
        pass

    async with h2rig() as r:
        replica = await r.replica(hold)
        client = await r.client()
        client.ask()
        client.ask(end=True)
        await until(lambda: len(replica.seen) == 2, "seen")
        client.abort()
        for stream in replica.seen:
            assert (await stream.whole()).reset == CANCEL
        await until(lambda: r.gate.in_flight == 0, "the slots are free")


@looped
async def test_a_replica_that_dies() -> None:
    async def begin(replica: H2Replica, peer: Peer, stream: Stream) -> None:
        if stream.headers[":path"] != "/silent":
            peer.head(stream.number, [(":status", "200"), GRPC])
            await peer.send(stream.number, b"half")

    async with h2rig() as r:
        replica = await r.replica(begin)
        client = await r.client()
        asked = {path: client.ask(path, *more) for path, more in (("/silent", ()), ("/", ()), ("/call", (GRPC,)))}
        await asked["/call"].until(lambda one: one.body == b"half")
        await asked["/"].until(lambda one: one.body == b"half")
        await replica.stop()
        silent, plain, call = [await stream.whole() for stream in asked.values()]
        assert silent.headers[":status"] == "502"
        assert plain.reset == INTERNAL
        assert call.ended
        assert call.trailers["grpc-status"] == "14"
        assert "its connection was" in call.trailers["grpc-message"]
        # Nobody listens any more: the next request is held until there is a replica that does.
        waiting = asyncio.ensure_future(client.call(b"again"))
        await until(lambda: r.rig.errors == [(KEY, "r0")] and r.gate.held == 1, "held")
        await r.replica()
        assert (await waiting).body == b"again"


@looped
async def test_a_replica_that_goes_away_finishes_what_it_has() -> None:
    held: list[tuple[Peer, Stream]] = []

    async def hold(replica: H2Replica, peer: Peer, stream: Stream) -> None:
        held.append((peer, stream))

    async with h2rig() as r:
        replica = await r.replica(hold)
        client = await r.client()
        first = client.ask(end=True)
        await until(lambda: len(held) == 1, "seen")
        peer, seen = held[0]
        # GOAWAY by hand: h2 would close its own side.
        frame = bytes.fromhex("000008 07 00 00000000") + seen.number.to_bytes(4, "big") + bytes(4)
        peer.transport.write(frame)  # type: ignore[attr-defined]
        await asyncio.sleep(0.01)
        second = client.ask(end=True)
        await until(lambda: len(held) == 2, "seen, on another connection")
        assert len(replica.peers) == 2
        peer.head(seen.number, [(":status", "200")])
        await peer.send(seen.number, b"done", end=True)
        assert (await first.whole()).body == b"done"
        await peer.gone.wait()
        held[1][0].head(held[1][1].number, [(":status", "204")], end=True)
        assert (await second.whole()).headers[":status"] == "204"


@pytest.mark.parametrize(
    ("limits", "path"),
    [
        (RevisionLimits(response_start=0.2), "/silent"),
        (RevisionLimits(timeout=0.2), "/half"),
        (RevisionLimits(idle=0.2), "/half"),
    ],
    ids=["response start", "timeout", "idle"],
)
def test_the_three_timeouts(limits: RevisionLimits, path: str) -> None:
    async def half(replica: H2Replica, peer: Peer, stream: Stream) -> None:
        if path == "/half":
            peer.head(stream.number, [(":status", "200")])
            await peer.send(stream.number, b"half")

    @looped
    async def check() -> None:
        async with h2rig(limits) as r:
            replica = await r.replica(half)
            client = await r.client()
            plain, call = client.ask(path, end=True), client.ask(path, GRPC, end=True)
            await asyncio.gather(plain.whole(), call.whole())
            if path == "/silent":
                assert plain.headers[":status"] == "504"
                assert call.headers["grpc-status"] == "4"
            else:
                assert (plain.body, plain.reset) == (b"half", INTERNAL)
                assert (call.body, call.trailers["grpc-status"]) == (b"half", "4")
            for stream in replica.seen:
                assert (await stream.whole()).reset == CANCEL

    check()


@looped
async def test_the_answer_may_end_before_the_request() -> None:
    async def early(replica: H2Replica, peer: Peer, stream: Stream) -> None:
        peer.head(stream.number, [(":status", "413")], end=True)

    async with h2rig() as r:
        replica = await r.replica(early)
        client = await r.client()
        stream = client.ask()
        await stream.until(lambda one: one.reset is not None)
        assert (stream.headers[":status"], stream.ended, stream.reset) == ("413", True, NO_ERROR)
        await replica.seen[0].whole()
        assert replica.seen[0].reset == NO_ERROR


# Who may ask what.

ASKED: dict[str, tuple[str, str, tuple[tuple[str, str], ...], str, str]] = {
    "no such function": ("/", "none.default.localhost", (), "404", "5"),
    "no such path": ("/a", "localhost", (), "404", "5"),
    "a stranger's name": ("/", "evil.example", (), "421", "3"),
    "a stranger's page": ("/", "echo.default.localhost", (("origin", "http://evil.example"),), "403", "7"),
    "HTTP/1.1 only": ("/", "old.default.localhost", (), "505", "12"),
}


@pytest.mark.parametrize("name", ASKED)
def test_refusals(name: str) -> None:
    path, authority, more, status, grpc_status = ASKED[name]

    @looped
    async def check() -> None:
        async with h2rig() as r:
            old = RevisionKey("default", "old-00001")
            r.rig.routes.set("default", "old", (RouteTarget(old, 100),))
            r.rig.gates.ensure(old, RevisionLimits())
            client = await r.client()
            plain = await client.call(b"", path, *more, authority=authority)
            assert plain.headers[":status"] == status
            assert json.loads(plain.body)["error"]
            call = await client.call(b"", path, *more, GRPC, authority=authority)
            assert (call.headers[":status"], call.headers["grpc-status"]) == ("200", grpc_status)
            assert call.headers["grpc-message"]
            assert call.body == b""

    check()


@looped
async def test_http1_to_a_function_that_speaks_http2() -> None:
    async with h2rig() as r:
        await r.replica()
        answer = await r.rig.get()
        assert answer.status == 505
        assert json.loads(answer.body)["error"].startswith("default/echo speaks HTTP/2 with prior knowledge only")


@looped
async def test_a_replica_that_speaks_http1_all_the_same() -> None:
    async with h2rig() as r:

        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
            assert await reader.read()
            writer.close()

        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        async with server:
            r.gate.add("r0", Address(*server.sockets[0].getsockname()))
            client = await r.client()
            call = await client.call(b"", "/m", GRPC)
            assert call.headers["grpc-status"] == "14"
            assert "does not speak HTTP/2" in call.headers["grpc-message"]


@looped
async def test_what_is_no_http2_behind_its_sign() -> None:
    async with h2rig() as r:
        client = await r.rig.client()
        await client.send(SIGN + b"\xff" * 64)
        # SETTINGS, and GOAWAY with the reason, and the end.
        assert (await client.reader.read())[-17:][3] == 7
        assert r.rig.router.connections == 0


@looped
async def test_the_sign_may_come_byte_by_byte() -> None:
    async with h2rig() as r:
        client = await r.rig.client()
        for byte in SIGN:
            await client.send(bytes([byte]))
        await client.send(bytes.fromhex("000000 04 00 00000000"))
        # The router's SETTINGS are there first.
        assert (await client.reader.readexactly(9))[3] == 4


@looped
async def test_more_streams_than_are_taken_end_the_connection() -> None:
    async with h2rig() as r:
        client = await r.client()
        client.h2.remote_settings.max_concurrent_streams  # noqa: B018  (the router says so; this client does not listen)
        for _ in range(STREAMS + 1):
            client.ask()
        await client.gone.wait()
        assert client.went_away
        await until(lambda: r.gate.held == 0, "none is left")


# The router's own ends.


@looped
async def test_a_stop_lets_streams_end() -> None:
    held: list[tuple[Peer, Stream]] = []

    async def hold(replica: H2Replica, peer: Peer, stream: Stream) -> None:
        held.append((peer, stream))

    async with h2rig() as r:
        await r.replica(hold)
        client, idle = await r.client(), await r.client()
        asked = client.ask(end=True)
        await until(lambda: len(held) == 1, "seen")
        stopping = asyncio.ensure_future(r.rig.router.stop(10))
        await idle.gone.wait()
        await until(lambda: client.went_away, "told")
        assert not stopping.done()
        peer, stream = held[0]
        peer.head(stream.number, [(":status", "200")], end=True)
        await stopping
        await client.gone.wait()
        del asked


@looped
async def test_an_idle_connection_is_closed() -> None:
    async with h2rig(settings=RouterSettings(keep_alive=0.5)) as r:
        await r.replica()
        client = await r.client()
        assert (await client.call(b"x")).body == b"x"
        await client.gone.wait()
        assert client.went_away


@looped
async def test_answers_are_counted_by_what_they_say() -> None:
    async def answered(replica: H2Replica, peer: Peer, stream: Stream) -> None:
        status = stream.headers[":path"][1:]
        peer.head(stream.number, [(":status", "200"), GRPC])
        peer.head(stream.number, [("grpc-status", status)], end=True)

    async with h2rig() as r:
        await r.replica(answered)
        client = await r.client()
        for status in (0, 0, 3, 5, 13, 14):
            await client.call(b"", f"/{status}", GRPC)
        series = r.rig.router._context.metrics.series(KEY)
        assert series.by_class == {"2xx": 2, "4xx": 2, "5xx": 2}


def test_frames_are_the_same_however_they_are_cut() -> None:
    def frame(kind: int, payload: bytes) -> bytes:
        return len(payload).to_bytes(3, "big") + bytes([kind, 0, 0, 0, 0, 1]) + payload

    away = frame(7, (5).to_bytes(4, "big") + (0).to_bytes(4, "big") + b"why")
    data = [b"p" * 24, frame(0, b"data"), away, frame(4, b""), frame(0, b"x" * 300), away, frame(6, b"12345678")]
    whole = b"".join(data)
    for size in (1, 2, 8, 9, 10, 50, len(whole)):
        frames = Frames(300, skip=24)
        passed = b"".join(frames.pass_on(whole[at : at + size]) for at in range(0, len(whole), size))
        assert passed == b"".join(one for one in data if one is not away)
        assert frames.went_away == [GoAway(5, 0), GoAway(5, 0)]
    with pytest.raises(FrameTooLarge):
        Frames(299).pass_on(frame(0, b"x" * 300)[:9])


@looped
async def test_held_streams_go_where_the_traffic_goes_now() -> None:
    async with h2rig() as r:
        client = await r.client()
        asked = asyncio.ensure_future(client.call(b"hello"))
        await until(lambda: r.gate.held == 1, "one held")
        other = RevisionKey("default", "echo-00002")
        replica = await r.replica(add=False)
        r.rig.gates.ensure(other, RevisionLimits(h2c=True)).add("new", replica.address)
        r.rig.routes.set("default", "echo", (RouteTarget(other, 100),))
        r.gate.move()
        answer = await asked
        assert (answer.headers[":status"], answer.body) == ("200", b"hello")
        assert len(replica.seen) == 1
