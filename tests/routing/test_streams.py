"""Long bodies and answers: nothing is kept back, nothing piles up."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
from collections.abc import AsyncIterator

import pytest
from routing.rig import Replica, Rig, Seen, looped, rig, until

from relight.local.serving.types import RevisionLimits

GET = b"GET /default/echo/ HTTP/1.1\r\nHost: localhost\r\n\r\n"
MANY = 20_000_000
BOUND = 1_500_000
"""Bytes of one connection that may be in the router: two write buffers and two reads of uvloop (256 KiB each)."""


@contextlib.asynccontextmanager
async def watched(r: Rig) -> AsyncIterator[list[int]]:
    """Samples of what the router keeps, in every turn of the loop that it can get."""
    samples: list[int] = []

    async def sample() -> None:
        while True:
            samples.append(r.router.buffered_bytes)
            await asyncio.sleep(0)

    task = asyncio.ensure_future(sample())
    try:
        yield samples
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@looped
async def test_first_token_is_not_delayed() -> None:
    steps: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def events(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        while (event := await steps.get()) is not None:
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async with rig() as r:
        await r.replica(events)
        client = await r.client()
        await client.send(GET)
        await client.reader.readuntil(b"\r\n\r\n")
        for number in range(5):
            event = b"data: %d\n\n" % number
            # The next is only made once this one has arrived.
            steps.put_nowait(event)
            assert await client.reader.readexactly(len(event) + 5) == b"%x\r\n%b\r\n" % (len(event), event)
        steps.put_nowait(None)
        assert await client.reader.readexactly(5) == b"0\r\n\r\n"


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_large_upload(chunked: bool) -> None:
    async def digest(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = hashlib.sha256(seen.body).hexdigest().encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 64\r\n\r\n" + body)

    @looped
    async def check() -> None:
        piece = bytes(range(250)) * 400
        async with rig() as r, watched(r) as samples:
            await r.replica(digest)
            client = await r.client()
            framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % MANY
            await client.send(b"PUT /default/echo/ HTTP/1.1\r\nHost: localhost\r\n%b\r\n\r\n" % framing)
            for _ in range(MANY // len(piece)):
                await client.send(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            if chunked:
                await client.send(b"0\r\n\r\n")
            answer = await client.answer()
            assert answer.body.decode() == hashlib.sha256(piece * (MANY // len(piece))).hexdigest()
            assert 0 < max(samples) < BOUND

    check()


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_large_download(chunked: bool) -> None:
    piece = bytes(range(250)) * 400

    async def pour(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % MANY
        writer.write(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % framing)
        for _ in range(MANY // len(piece)):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            await writer.drain()
        if chunked:
            writer.write(b"0\r\n\r\n")

    @looped
    async def check() -> None:
        async with rig() as r, watched(r) as samples:
            await r.replica(pour)
            client = await r.client()
            await client.send(GET)
            answer = await client.answer()
            assert answer.whole
            assert answer.body == piece * (MANY // len(piece))
            assert max(samples) < BOUND

    check()


@looped
async def test_an_upload_waits_for_a_replica_that_does_not_read() -> None:
    """The client is stopped by its own full socket: kernel buffers take far less than it wants to send."""
    go = asyncio.Event()

    async def later(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await go.wait()
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        body = await reader.readexactly(int(seen.headers["content-length"]))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n%08d" % len(body))

    async with rig() as r:
        replica = await r.replica(later, read_body=False, add=False)
        assert replica._server is not None
        replica._server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        r.gate.add(replica.name, replica.address)
        client = await r.client()
        client.writer.write(
            b"POST /default/echo/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (3 * MANY)
        )
        client.writer.write(b"x" * (3 * MANY))
        transport = client.writer.transport
        before = -1
        while transport.get_write_buffer_size() != before:
            before = transport.get_write_buffer_size()
            await asyncio.sleep(0.1)
        assert before > MANY
        assert r.router.buffered_bytes < BOUND
        go.set()
        assert int((await client.answer()).body) == 3 * MANY


@looped
async def test_a_download_waits_for_a_client_that_does_not_read() -> None:
    sent = 0

    async def pour(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (3 * MANY))
        while sent < 3 * MANY:
            writer.write(b"x" * 100_000)
            sent += 100_000
            await writer.drain()

    async with rig() as r:
        await r.replica(pour)
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        plain.setblocking(False)
        await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", r.port))
        plain.send(GET)
        before = -1
        while sent != before or not sent:
            before = sent
            await asyncio.sleep(0.1)
        assert sent < 2 * MANY
        assert r.router.buffered_bytes < BOUND
        plain.close()
        await until(lambda: r.gate.in_flight == 0, "cancelled")


@looped
async def test_an_early_answer_to_a_large_upload() -> None:
    """A function may refuse by the head alone: the client reads why, though it is still sending."""

    async def refuse(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig")
        await asyncio.Event().wait()

    async with rig() as r:
        await r.replica(refuse, read_body=False)
        answer = await r.post(b"x" * MANY)
        assert (answer.status, answer.body, answer.headers["connection"]) == (413, b"big", "close")
        # A refusal of the router itself, likewise.
        answer = await r.post(b"x" * 3_000_000, "/default/nope/")
        assert (answer.status, answer.whole) == (404, True)


# -- Knative's three timeouts


def paced(*steps: float | bytes, kind: bytes = b"text/event-stream") -> object:
    async def handler(r: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n" % kind
        for step in steps:
            if isinstance(step, float):
                await asyncio.sleep(step)
                continue
            writer.write(head + b"%x\r\n%b\r\n" % (len(step), step))
            head = b""
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    return handler


LIMITS = RevisionLimits(response_start=0.15, idle=0.2, timeout=0.6)
TOKEN = b"data: x\n\n"


@pytest.mark.parametrize(
    ("handler", "status", "whole", "says"),
    [
        pytest.param(paced(*[TOKEN, 0.05] * 6), 200, True, b"", id="a stream within all limits, longer than its start"),
        pytest.param(paced(0.3, TOKEN), 504, True, b"no answer within", id="late first byte"),
        pytest.param(paced(TOKEN, 0.4, TOKEN), 200, False, b"idle limit", id="a pause in mid stream"),
        pytest.param(paced(*[TOKEN, 0.05] * 40), 200, False, b"in time", id="longer than the request may take"),
        pytest.param(paced(b"ab", 0.4, b"cd", kind=b"text/plain"), 200, False, b"", id="no words in what is no stream"),
    ],
)
def test_timeouts(handler: object, status: int, whole: bool, says: bytes) -> None:
    @looped
    async def check() -> None:
        async with rig(LIMITS) as r:
            await r.replica(handler)  # type: ignore[arg-type]
            answer = await r.get("/default/echo/v1/chat/completions")
            assert (answer.status, answer.whole) == (status, whole)
            assert says in answer.body
            if status == 504:
                assert json.loads(answer.body)["error"]["code"] == "deadline_exceeded"
            elif says:
                event = answer.body.removeprefix(TOKEN).rpartition(b"event: error\ndata: ")[2]
                assert json.loads(event)["error"]["code"] == "cut"
            elif not whole:
                assert answer.body == b"ab"
            assert r.gate.in_flight == 0

    check()


@looped
async def test_the_wait_for_a_replica_counts() -> None:
    async with rig(RevisionLimits(response_start=0.05)) as r:
        answer = await r.get()
        assert answer.status == 504
        assert "no replica of revision default/echo-00001" in json.loads(answer.body)["error"]


@looped
async def test_an_answer_without_framing_does_not_end_cleanly() -> None:
    """To an HTTP/1.0 client the end of the connection is the end of the answer: it must see a reset instead."""
    async with rig(RevisionLimits(idle=0.05)) as r:
        await r.replica(paced(b"ab", 0.3, b"cd"))  # type: ignore[arg-type]
        client = await r.client()
        await client.send(b"GET /default/echo/ HTTP/1.0\r\n\r\n")
        await client.reader.readuntil(b"ab")
        with pytest.raises(ConnectionResetError):
            await client.reader.read()
