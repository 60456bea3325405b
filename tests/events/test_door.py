"""The broker's listener on the wire: framing, limits, order, what is handed over, and how it closes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from events.rig import Machine, run

from relight.local.eventing import door

HEAD = "POST /default/rec HTTP/1.1\r\nHost: 127.0.0.1\r\nce-specversion: 1.0\r\nce-type: t\r\nce-source: /s\r\n"
POST = f"{HEAD}ce-id: 1\r\nContent-Length: 2\r\n\r\n{{}}"
GET = "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


class Line:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, text: str) -> None:
        self.writer.write(text.encode("latin-1"))

    async def answer(self) -> tuple[int, bytes]:
        """The status and the body of the next answer."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0] or 0)
        return int(head.split()[1]), await self.reader.readexactly(length)

    async def is_closed(self) -> bool:
        return await self.reader.read() == b""


@asynccontextmanager
async def line(machine: Machine) -> AsyncIterator[Line]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(machine.url.rpartition(":")[2]))
    try:
        yield Line(reader, writer)
    finally:
        writer.close()


ONE: list[tuple[str, str, list[int], bool]] = [
    ("whole", POST, [202], False),
    ("close", POST.replace("ce-id", "Connection: close\r\nce-id"), [202], True),
    ("http/1.0", POST.replace("HTTP/1.1", "HTTP/1.0"), [202], True),
    ("two in a row", POST + POST, [202, 202], False),
    ("chunked", f"{HEAD}ce-id: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n1\r\n}}\r\n0\r\n\r\n", [202], False),
    ("too long by its length", f"{HEAD}ce-id: 1\r\nContent-Length: 1001\r\n\r\n" + "x" * 1001, [413], False),
    (
        "too long by its chunks",
        f"{HEAD}ce-id: 1\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + "x" * 1001 + "\r\n0\r\n\r\n",
        [413],
        False,
    ),
    ("after a refusal the next is taken", POST.replace("ce-id", "ce-nope") + POST, [400, 202], False),
    ("both framings", POST.replace("ce-id", "Transfer-Encoding: chunked\r\nce-id"), [400], True),
    ("two lengths", POST.replace("ce-id", "Content-Length: 2\r\nce-id"), [400], True),
    ("no http", "hello\r\n\r\n", [400], True),
    ("a long head", f"{HEAD}ce-x: " + "x" * 70_000, [431], True),
    ("an absolute target is aiohttp's", POST.replace("/default/rec", "http://127.0.0.1/default/rec"), [202], False),
    ("a look inside, then an event", GET + "", [200], False),
    ("an event, then a look inside at once", POST + GET, [202, 400], True),
    ("an event, then nonsense at once", POST + "hello\r\n\r\n", [202, 400], True),
]


@pytest.mark.parametrize(("sent", "statuses", "closed"), [one[1:] for one in ONE], ids=[one[0] for one in ONE])
@pytest.mark.parametrize("how", ["whole", "in pieces"])
def test_on_the_wire(
    how: str, sent: str, statuses: list[int], closed: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async def story() -> None:
        async with Machine(tmp_path, event_limit=1000).up() as machine, line(machine) as client:
            if how == "whole":
                client.send(sent)
            else:
                step = max(1, len(sent) // 50)
                for at in range(0, len(sent), step):
                    client.send(sent[at : at + step])
                    await client.writer.drain()
                    await asyncio.sleep(0)
            got = [(await client.answer())[0] for _ in statuses]
            if "look inside at once" in request.node.callspec.id and how != "whole":
                assert got == [202, 200]  # it came late enough to be handed over
            else:
                assert got == statuses
                assert not closed or await client.is_closed()

    run(story())


def test_one_connection_for_events_and_for_looking(tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, line(machine) as client:
            for _ in range(2):
                client.send(POST)
                assert (await client.answer())[0] == 202
            client.send(GET)
            status, body = await client.answer()
            assert status == 200
            assert b'relight_broker_events_accepted_total{broker="rec",namespace="default"} 2.0' in body
            # From now on the connection is aiohttp's, which takes events too.
            for sent, status in ((POST, 202), (GET, 200), (POST.replace("ce-id", "ce-nope"), 400), (POST, 202)):
                client.send(sent)
                assert (await client.answer())[0] == status

    run(story())


def test_who_waits_for_a_100_gets_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, line(machine) as client:
            head, _, body = POST.replace("ce-id", "Expect: 100-continue\r\nce-id").partition("\r\n\r\n")
            client.send(head + "\r\n\r\n")
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.send(body)
            assert (await client.answer())[0] == 202

    run(story())


@pytest.mark.parametrize(("sent", "answer"), [(POST[:40], b"HTTP/1.1 400"), ("", b"")], ids=["tardy", "idle"])
def test_nobody_holds_a_connection_for_nothing(
    sent: str, answer: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("TARDY", 0.1), ("IDLE", 0.1), ("LOOK", 0.02)):
        monkeypatch.setattr(door, name, seconds)

    async def story() -> None:
        async with Machine(tmp_path).up() as machine, line(machine) as client:
            client.send(sent)
            assert (await client.reader.read()).startswith(answer)

    run(story())


def test_a_stop_answers_what_it_has_begun(tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, line(machine) as client, line(machine) as idle:
            await machine.trigger("t", "t", "http://127.0.0.1:9/", annotations={"relight.dev/paused": "true"})
            log, held = machine.eventing.log, list[Any]()
            accept, entered = log.accept_then, asyncio.Event()

            def hold(*arguments: Any) -> None:
                held.append(arguments)
                entered.set()

            log.accept_then = hold  # type: ignore[method-assign]
            client.send(POST)
            await entered.wait()
            stopping = asyncio.ensure_future(machine.eventing.stop())
            assert await idle.is_closed()
            accept(*held[0])
            assert (await client.answer())[0] == 202
            assert await client.is_closed()
            await stopping

    run(story())
