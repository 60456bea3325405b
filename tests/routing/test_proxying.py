"""Requests and answers, framing and headers, through real sockets."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from routing.rig import KEY, Client, Replica, Seen, looped, rig, until

from relight.local.serving.types import RevisionKey, RevisionLimits, RouteTarget
from relight.wire.http import Response

GET = b"GET /default/echo/%s HTTP/1.1\r\nHost: localhost\r\n\r\n"


@looped
async def test_what_the_function_sees_and_what_comes_back() -> None:
    async with rig() as r:
        replica = await r.replica()
        answer = await r.ask(
            b"POST /default/echo/v2/infer?x=1 HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nContent-Length: 2\r\n"
            b"Connection: keep-alive, X-Private\r\nX-Private: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\n"
            b"Proxy-Authorization: secret\r\nX-Forwarded-For: 10.1.1.1\r\nX-Custom: a\r\nX-Custom: b\r\n"
            b"X-Request-Id: abc\r\nce-id: 7\r\n\r\nhi"
        )
        assert (answer.status, answer.body, answer.headers["x-request-id"]) == (200, b"hi", "abc")
        seen = replica.seen[0]
        assert (seen.method, seen.target, seen.body) == ("POST", "/v2/infer?x=1", b"hi")
        trace = seen.headers.pop("traceparent")
        assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", trace)
        assert seen.headers == {
            "host": "echo.default.localhost",
            "content-length": "2",
            "x-custom": "a, b",
            "ce-id": "7",
            "x-forwarded-for": "10.1.1.1, 127.0.0.1",
            "x-forwarded-host": "127.0.0.1:8080",
            "x-forwarded-proto": "http",
            "x-forwarded-prefix": "/default/echo",
            "x-request-id": "abc",
        }


@looped
async def test_host_form_keeps_host_and_path() -> None:
    async with rig() as r:
        replica = await r.replica()
        for host in (
            "echo.default.localhost:8080",
            "echo.default.svc.cluster.local",
            "echo.default.127.0.0.1.sslip.io",
        ):
            assert (await r.get("/a/b", host=host)).status == 200
            seen = replica.seen.pop()
            assert (seen.target, seen.headers["host"]) == ("/a/b", host)
            assert "x-forwarded-prefix" not in seen.headers
        # Absolute form goes before Host (RFC 9112, 3.2.2).
        answer = await r.ask(b"GET http://echo.default.localhost/x HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (answer.status, replica.seen.pop().target) == (200, "/x")


@looped
async def test_tracing_is_passed_on() -> None:
    async with rig() as r:
        replica = await r.replica()
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
        answer = await r.get(headers=f"traceparent: {trace}\r\ntracestate: a=b\r\n")
        seen = replica.seen[0].headers
        assert (seen["traceparent"], seen["tracestate"]) == (trace, "a=b")
        assert answer.headers["x-request-id"] == seen["x-request-id"]
        assert len(seen["x-request-id"]) == 32


@looped
async def test_tags_and_split() -> None:
    async with rig() as r:
        other = RevisionKey("default", "echo-00002")
        await r.replica(name="one")
        two = await r.replica(name="two", add=False)
        r.gates.ensure(other).add("two", two.address)
        r.routes.set("default", "echo", (RouteTarget(KEY, 50), RouteTarget(other, 50, "next")))
        bodies = {(await r.get("/default/next-echo/")).body for _ in range(8)}
        assert bodies == {b"two"}
        bodies = {(await r.get()).body for _ in range(40)}
        assert bodies == {b"one", b"two"}


HEADERS = [
    ("a tag", True, "next", "two"),
    ("a tag that takes no traffic", True, "old", "three"),
    ("no such tag: as if there were none", True, "nope", "one"),
    ("the flag is off", False, "next", "one"),
]


@pytest.mark.parametrize(("on", "tag", "body"), [row[1:] for row in HEADERS], ids=[row[0] for row in HEADERS])
def test_a_tag_by_its_header(on: bool, tag: str, body: str) -> None:
    @looped
    async def check() -> None:
        async with rig() as r:
            r.routes.by_tag_header = lambda: on
            targets = [RouteTarget(KEY, 100)]
            replicas = [await r.replica(name="one")]
            for name, given in (("two", "next"), ("three", "old")):
                key = RevisionKey("default", f"echo-{name}")
                replicas.append(await r.replica(name=name, add=False))
                r.gates.ensure(key).add(name, replicas[-1].address)
                targets.append(RouteTarget(key, 0, given))
            r.routes.set("default", "echo", tuple(targets))
            assert (await r.get(headers=f"Knative-Serving-Tag: {tag}\r\n")).body == body.encode()
            (seen,) = (seen for replica in replicas for seen in replica.seen)
            assert seen.headers["knative-serving-tag"] == tag, "the function is told what was asked for"
            by_name = await r.get("/default/old-echo/", headers="Knative-Serving-Tag: next\r\n")
            assert by_name.body == b"three", "the tag's own address says more than a header"

    check()


@pytest.mark.parametrize(
    ("request_line", "headers", "status", "says"),
    [
        pytest.param("GET /default/nope/", "Host: localhost", 404, "no function default/nope", id="unknown function"),
        pytest.param("GET /nope", "Host: localhost", 404, "/NAMESPACE/NAME/", id="no function's path"),
        pytest.param("GET /", "Host: nope.default.localhost", 404, "default/nope", id="unknown by host"),
        pytest.param("GET /default/echo/", "Host: evil.example", 421, "evil.example", id="rebound name"),
        pytest.param("GET /default/echo/", "Host: a\r\nHost: b", 400, "one Host", id="two hosts"),
        pytest.param("GET /default/echo/", "X: y", 400, "one Host", id="no host"),
        pytest.param(
            "POST /default/echo/", "Host: localhost\r\nOrigin: https://evil.example", 403, "evil.example", id="origin"
        ),
        pytest.param("OPTIONS *", "Host: localhost", 400, "no path", id="asterisk"),
        pytest.param("GET /default/unset/", "Host: localhost", 503, "not set up", id="a revision without gate"),
        pytest.param("GET /default/tags/", "Host: localhost", 404, "no target", id="a route that has only tags"),
    ],
)
def test_what_is_not_forwarded(request_line: str, headers: str, status: int, says: str) -> None:
    @looped
    async def check() -> None:
        async with rig() as r:
            replica = await r.replica()
            r.routes.set("default", "unset", (RouteTarget(RevisionKey("default", "unset-1"), 100),))
            r.routes.set("default", "tags", (RouteTarget(KEY, 0, "t"),))
            answer = await r.ask(f"{request_line} HTTP/1.1\r\n{headers}\r\n\r\n".encode())
            assert answer.status == status
            assert says in json.loads(answer.body)["error"]
            assert replica.seen == []

    check()


@looped
async def test_openai_clients_get_their_shape_of_error() -> None:
    async with rig() as r:
        answer = await r.get("/default/nope/v1/models")
        error = json.loads(answer.body)["error"]
        assert error["code"] == "not_found"
        assert "default/nope" in error["message"]


@looped
async def test_list_of_functions() -> None:
    async with rig() as r:
        answer = await r.get("/")
        assert json.loads(answer.body)["functions"] == [
            {"namespace": "default", "name": "echo", "path": "/default/echo/"}
        ]
    async with rig(pages={b"/": lambda: Response(200, (("content-type", "text/plain"),), b"mine")}) as r:
        assert (await r.get("/?q")).body == b"mine"
        assert (await r.ask(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n")).headers["content-length"] == "4"


@looped
async def test_one_connection_each_is_kept() -> None:
    async with rig() as r:
        replica = await r.replica()
        client = await r.client()
        for number in range(5):
            await client.send(GET % str(number).encode())
            assert (await client.answer()).status == 200
        # Errors of the router do not end it either.
        await client.send(b"GET /default/nope/ HTTP/1.1\r\nHost: localhost\r\n\r\n" + GET % b"x")
        assert [(await client.answer()).status for _ in range(2)] == [404, 200]
        assert replica.connections == 1
        await client.send(b"GET /default/echo/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = await client.answer()
        assert answer.headers["connection"] == "close"
        assert await client.closed()


@looped
async def test_http_1_0() -> None:
    async def unframed(
        replica: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")

    async with rig() as r:
        await r.replica()
        client = await r.client()
        for _ in range(2):
            await client.send(b"GET /default/echo/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            answer = await client.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "keep-alive")
        await client.send(b"GET /default/echo/ HTTP/1.0\r\n\r\n")
        assert (await client.answer()).status == 200
        assert await client.closed()
    async with rig() as r:
        await r.replica(unframed)
        answer = await r.ask(b"GET /default/echo/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert "transfer-encoding" not in answer.headers
        assert answer.body == b"abc"


@looped
async def test_pipelining_keeps_the_order() -> None:
    async def slow_first(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if seen.target == "/0":
            await asyncio.sleep(0.02)
        body = seen.target.encode() + seen.body
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    async with rig() as r:
        await r.replica(slow_first)
        client = await r.client()
        count = 300
        burst = b"".join(
            b"POST /default/echo/%d HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n%02d" % (n, n % 100)
            for n in range(count)
        )
        await client.send(burst)
        for number in range(count):
            assert (await client.answer()).body == b"/%d%02d" % (number, number % 100)


@looped
async def test_many_refusals_sent_ahead_do_not_nest() -> None:
    async with rig() as r:
        client = await r.client()
        await client.send(b"GET /default/nope/ HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3000)
        for _ in range(3000):
            assert (await client.answer()).status == 404


@looped
async def test_byte_by_byte() -> None:
    async with rig() as r:
        replica = await r.replica()
        client = await r.client()
        head = b"POST /default/echo/ HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        request = head + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        for index in range(len(request)):
            await client.send(request[index : index + 1])
        answer = await client.answer()
        assert (answer.body, replica.seen[0].body) == (b"abcde", b"abcde")


@looped
async def test_chunked_both_ways_and_no_trailers() -> None:
    async def chunks(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n")
        for piece in (seen.body[:3], seen.body[3:]):
            writer.write(b"%x;ext=1\r\n%b\r\n" % (len(piece), piece))
            await asyncio.sleep(0.001)
        writer.write(b"0\r\nX-Sum: 1\r\n\r\n")

    async with rig() as r:
        replica = await r.replica(chunks)
        head = b"POST /default/echo/ HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        client = await r.client()
        for _ in range(2):
            await client.send(head + b"5\r\nhello\r\n")
            await client.send(b"6\r\n world\r\n0\r\nX-Trailer: 1\r\n\r\n")
            answer = await client.answer()
            assert (answer.body, answer.whole) == (b"hello world", True)
            assert not {"trailer", "x-sum"} & set(answer.headers)
        assert replica.connections == 1
        assert "x-trailer" not in replica.seen[0].headers


@looped
async def test_a_chunked_request_that_waits_for_its_answer() -> None:
    """Both sides speak in turn: neither may be kept until the other is done."""

    async def turns(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while size := int(await reader.readline(), 16):
            piece = (await reader.readexactly(size + 2))[:-2]
            writer.write(b"%x\r\n%b\r\n" % (size, piece.upper()))
            await writer.drain()
        await reader.readline()
        writer.write(b"0\r\n\r\n")

    async with rig() as r:
        await r.replica(turns, read_body=False)
        client = await r.client()
        await client.send(b"POST /default/echo/ HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        await client.send(b"3\r\none\r\n")
        await client.reader.readuntil(b"\r\n\r\n")
        assert await client.reader.readexactly(8) == b"3\r\nONE\r\n"
        await client.send(b"3\r\ntwo\r\n")
        assert await client.reader.readexactly(8) == b"3\r\nTWO\r\n"
        await client.send(b"0\r\n\r\n")
        assert await client.reader.readexactly(5) == b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("method", "wire", "status", "headers", "body"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 200, {"content-length": "5"}, b""),
        ("HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 200, {}, b""),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", 204, {}, b""),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: a\r\n\r\n", 304, {"etag": "a"}, b""),
        ("GET", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", 200, {}, b"x"),
        ("GET", b"HTTP/1.1 103 Early\r\nLink: a\r\n\r\nHTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n", 404, {}, b""),
        ("GET", b"HTTP/1.1 299 Odd\r\nContent-Length: 0\r\nX-A: 1\r\nX-A: 2\r\n\r\n", 299, {"x-a": "1, 2"}, b""),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\nx", 200, {}, b"x"),
    ],
    ids=["head", "head chunked", "204", "304", "continue", "hints", "unknown status", "nominated by connection"],
)
def test_answers(method: str, wire: bytes, status: int, headers: dict[str, str], body: bytes) -> None:
    async def say(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(wire)

    @looped
    async def check() -> None:
        async with rig() as r:
            replica = await r.replica(say)
            client = await r.client()
            for _ in range(2):
                await client.send(f"{method} /default/echo/ HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                answer = await client.answer(method)
                assert (answer.status, answer.body, answer.whole) == (status, body, True)
                assert headers.items() <= answer.headers.items()
                assert "x-hop" not in answer.headers
                assert ("transfer-encoding" in answer.headers) is False
            assert replica.connections == 1

    check()


@looped
async def test_an_answer_without_length_becomes_chunks() -> None:
    async def unframed(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\npart one, ")
        await asyncio.sleep(0.005)
        writer.write(b"part two")
        await writer.drain()
        writer.close()

    async with rig() as r:
        replica = await r.replica(unframed)
        client = await r.client()
        for _ in range(2):
            await client.send(GET % b"")
            answer = await client.answer()
            assert (answer.body, answer.whole) == (b"part one, part two", True)
        assert replica.connections == 2


@pytest.mark.parametrize("size", [10, 200_000], ids=["small", "large"])
def test_expect_continue(size: int) -> None:
    @looped
    async def check() -> None:
        async with rig() as r:
            replica = await r.replica(add=False)
            client = await r.client()
            head = (
                b"POST /default/%s/ HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
            )
            await client.send(head % (b"echo", size))
            if size > 65536:
                # A large body is not asked for before there is a replica that takes it.
                await until(lambda: r.gate.held == 1, "held")
                assert len(client.reader._buffer) == 0  # type: ignore[attr-defined]
                r.gate.add(replica.name, replica.address)
            assert (await client.answer()).status == 100
            r.gate.add(replica.name, replica.address)
            await client.send(b"x" * size)
            answer = await client.answer()
            assert (answer.status, len(answer.body)) == (200, size)
            assert "expect" not in replica.seen[0].headers
            # Where nobody wants the body, nobody asks for it.
            await client.send(head % (b"nope", size))
            assert (await client.answer()).status == 404
            assert await client.closed()

    check()


@looped
async def test_timing_is_told_on_request() -> None:
    async with rig() as r:
        replica = await r.replica(add=False)
        asked = asyncio.ensure_future(r.get(headers="relight-timing: 1\r\n"))
        await until(lambda: r.gate.held == 1, "held")
        await asyncio.sleep(0.02)
        r.gate.add(replica.name, replica.address)
        answer = await asked
        match = re.fullmatch(r"hold;dur=([\d.]+), total;dur=([\d.]+)", answer.headers["server-timing"])
        assert match
        assert 20 <= float(match[1]) <= float(match[2])
        assert replica.seen[0].headers["relight-timing"] == "1"
        assert "server-timing" not in (await r.get()).headers


# -- upgrades


async def websocket_echo(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Any bytes are echoed after the handshake; frames are the peers' business."""
    if seen.headers.get("upgrade") != "websocket":
        writer.write(b"HTTP/1.1 426 Upgrade Required\r\ncontent-length: 0\r\n\r\n")
        return
    assert seen.headers["connection"] == "upgrade"
    key = hashlib.sha1(seen.headers["sec-websocket-key"].encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
    writer.write(
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Accept: %b\r\n\r\nhello" % base64.b64encode(key)
    )
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


HANDSHAKE = (
    b"GET /default/echo/ws HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@looped
async def test_websocket() -> None:
    async with rig(RevisionLimits(timeout=0.3, response_start=0.3)) as r:
        replica = await r.replica(websocket_echo)
        client = await r.client()
        await client.send(HANDSHAKE + b"early")
        answer = await client.answer()
        assert (answer.status, answer.headers["upgrade"]) == (101, "websocket")
        assert answer.headers["sec-websocket-accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        assert await client.reader.readexactly(10) == b"helloearly"
        payload = bytes(range(256)) * 4096
        client.writer.write(payload)
        assert await client.reader.readexactly(len(payload)) == payload
        # It outlives the limits of a request, and counts as in flight.
        await asyncio.sleep(0.4)
        await client.send(b"GET / HTTP/1.1\r\n\r\n")
        assert await client.reader.readexactly(18) == b"GET / HTTP/1.1\r\n\r\n"
        idle = r.gate.remove(replica.name)
        assert not idle.done()
        client.close()
        await idle


@looped
async def test_a_tunnel_ends_with_either_side() -> None:
    async with rig() as r:
        replica = await r.replica(websocket_echo)
        client = await r.client()
        await client.send(HANDSHAKE)
        await client.answer()
        await replica.stop()
        assert await client.reader.read() == b"hello"
    async with rig(RevisionLimits(idle=0.05)) as r:
        await r.replica(websocket_echo)
        client = await r.client()
        await client.send(HANDSHAKE)
        await client.answer()
        assert await client.reader.readexactly(5) == b"hello"
        assert await client.closed()


@looped
async def test_a_refused_upgrade_is_an_ordinary_answer() -> None:
    async with rig() as r:
        await r.replica()
        client = await r.client()
        await client.send(HANDSHAKE)
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, b"r0")
        assert await client.closed()


@looped
async def test_an_offer_of_h2c_is_not_passed_on() -> None:
    """Java's HttpClient makes it with every first request, bodies included; passed on, it would be a way round."""
    async with rig() as r:
        replica = await r.replica()
        client = await r.client()
        offer = (
            b"Host: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
        )
        await client.send(b"POST /default/echo/1 HTTP/1.1\r\n" + offer + b"Content-Length: 3\r\n\r\nabc" + GET % b"2")
        assert [(await client.answer()).body for _ in range(2)] == [b"abc", b"r0"]
        await client.send(
            b"POST /default/echo/3 HTTP/1.1\r\n" + offer + b"Transfer-Encoding: chunked\r\n\r\n3\r\nxyz\r\n0\r\n\r\n"
        )
        assert (await client.answer()).body == b"xyz"
        await client.send(b"GET /default/echo/4 HTTP/1.1\r\n" + offer + b"\r\n" + GET % b"5")
        assert [(await client.answer()).status for _ in range(2)] == [200, 200]
        assert [seen.target for seen in replica.seen] == ["/1", "/2", "/3", "/4", "/5"]
        assert not any({"upgrade", "http2-settings", "connection"} & set(seen.headers) for seen in replica.seen)


@looped
async def test_metrics() -> None:
    registry = CollectorRegistry()
    async with rig(registry=registry) as r:
        replica = await r.replica(add=False)
        held = await r.client()
        await held.send(GET % b"")
        await until(lambda: r.gate.held == 1, "held")
        assert b'relight_router_held{namespace="default",revision="echo-00001"} 1.0' in generate_latest(registry)
        r.gate.add(replica.name, replica.address)
        await held.answer()
        await r.get()
        text = generate_latest(registry).decode()
        labels = 'namespace="default",revision="echo-00001"'
        assert f'relight_router_requests_total{{code_class="2xx",{labels}}} 2.0' in text
        assert f"relight_router_request_seconds_count{{{labels}}} 2.0" in text
        assert f"relight_router_held{{{labels}}} 0.0" in text
    assert "relight_router" not in generate_latest(registry).decode()


@looped
async def test_stop_lets_the_answer_end() -> None:
    release = asyncio.Event()

    async def wait(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndone")

    async with rig() as r:
        await r.replica(wait)
        idle, busy = await r.client(), await r.client()
        await busy.send(GET % b"")
        await until(lambda: r.gate.in_flight == 1, "in flight")
        stopping = asyncio.ensure_future(r.router.stop(5))
        assert await idle.closed()
        with pytest.raises(ConnectionRefusedError):
            await r.client()
        release.set()
        answer = await busy.answer()
        assert (answer.body, answer.headers["connection"]) == (b"done", "close")
        await stopping
        assert r.router.connections == 0


@looped
async def test_stop_cuts_what_does_not_end() -> None:
    async def never(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with rig() as r:
        await r.replica(never)
        client: Client = await r.client()
        await client.send(GET % b"")
        await until(lambda: r.gate.in_flight == 1, "in flight")
        await r.router.stop(0.02)
        assert await client.closed()
        assert r.gate.in_flight == 0
