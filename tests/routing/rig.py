"""A router on loopback between a client of raw bytes and replicas that are told what to do."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvloop

from relight.decide.admission import HoldLimits
from relight.local.serving.activator import Gates
from relight.local.serving.context import RouterSettings
from relight.local.serving.router import Router
from relight.local.serving.routes import Routes
from relight.local.serving.types import Address, RevisionKey, RevisionLimits, RouteTarget

KEY = RevisionKey("default", "echo-00001")


def looped(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on uvloop, within 20 s."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def main() -> None:
            async with asyncio.timeout(20):
                await test(*args, **kwargs)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())

    return run


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that has no event of its own; fails by name after 5 s."""
    try:
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110 (there is no event to wait for)
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"never came true: {what}") from None


@dataclass
class Seen:
    """A request as a replica read it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes = b""


@dataclass
class Answer:
    """An answer as the client read it. ``whole`` is False where the connection ended inside it."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool


async def read_head(reader: asyncio.StreamReader) -> tuple[list[str], dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        name = name.lower()
        headers[name] = f"{headers[name]}, {value.strip()}" if name in headers else value.strip()
    return first.split(" ", 2), headers


async def read_chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int((await reader.readline()).split(b";")[0], 16):
        yield await reader.readexactly(size)
        assert await reader.readexactly(2) == b"\r\n"
    while await reader.readline() != b"\r\n":
        pass


class Client:
    """One connection to the router."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, method: str = "GET") -> Answer:
        """Read one answer, however it is framed."""
        (_, status, *_), headers = await read_head(self.reader)
        code, body = int(status), b""
        try:
            if method == "HEAD" or code in (204, 304) or code < 200:
                pass
            elif headers.get("transfer-encoding") == "chunked":
                async for chunk in read_chunks(self.reader):
                    body += chunk
            elif "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            else:
                while data := await self.reader.read(65536):
                    body += data
        except (asyncio.IncompleteReadError, ConnectionResetError, ValueError) as error:
            if isinstance(error, asyncio.IncompleteReadError):
                body += error.partial
            return Answer(code, headers, body, False)
        return Answer(code, headers, body, True)

    async def closed(self) -> bool:
        """Whether the router ends the connection without another byte."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.writer.close()

    def abort(self) -> None:
        self.writer.transport.abort()


Handler = Callable[["Replica", Seen, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(replica: Replica, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with the body that came, or the replica's name."""
    body = seen.body or replica.name.encode()
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % len(body))
    if seen.method != "HEAD":
        writer.write(body)


class Replica:
    """A tiny server. ``handler`` answers each request; with ``read_body`` off it finds the body still unread."""

    def __init__(self, name: str, handler: Handler = echo, *, read_body: bool = True) -> None:
        self.name = name
        self.handler = handler
        self.read_body = read_body
        self.seen: list[Seen] = []
        self.connections = 0
        self.lost = 0
        """Connections that ended while a handler was at work."""
        self.address = Address("127.0.0.1", 0)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, sock: socket.socket | None = None) -> None:
        if sock is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.address.port)
        else:
            self._server = await asyncio.start_server(self._serve, sock=sock)
        self.address = Address("127.0.0.1", self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                (method, target, _), headers = await read_head(reader)
                seen = Seen(method, target, headers)
                if self.read_body:
                    if headers.get("transfer-encoding") == "chunked":
                        seen.body = b"".join([chunk async for chunk in read_chunks(reader)])
                    else:
                        seen.body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.seen.append(seen)
                await self.handler(self, seen, reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort()

    async def stop(self) -> None:
        """As a killed process: no more listener, connections reset."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@dataclass
class Rig:
    router: Router
    routes: Routes
    gates: Gates
    port: int
    wakes: list[RevisionKey]
    errors: list[tuple[RevisionKey, str]]
    firsts: list[tuple[RevisionKey, str, float]]
    clients: list[Client] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=list)

    @property
    def gate(self) -> Any:
        return self.gates.ensure(KEY)

    async def client(self, **kwargs: Any) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, **kwargs))
        self.clients.append(client)
        return client

    async def replica(self, handler: Handler = echo, *, name: str = "", add: bool = True, **kwargs: Any) -> Replica:
        replica = Replica(name or f"r{len(self.replicas)}", handler, **kwargs)
        await replica.start()
        self.replicas.append(replica)
        if add:
            self.gate.add(replica.name, replica.address)
        return replica

    async def ask(self, request: bytes) -> Answer:
        """One request on a connection of its own."""
        client = await self.client()
        await client.send(request)
        answer = await client.answer(request.split(b" ", 1)[0].decode())
        client.close()
        return answer

    async def get(self, path: str = "/default/echo/", host: str = "localhost", headers: str = "") -> Answer:
        return await self.ask(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n".encode())

    async def post(self, body: bytes, path: str = "/default/echo/", headers: str = "") -> Answer:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        return await self.ask(head.encode() + body)


@asynccontextmanager
async def rig(
    limits: RevisionLimits | None = None,
    *,
    hold: HoldLimits | None = None,
    settings: RouterSettings | None = None,
    grace: float = 0.0,
    **kwargs: Any,
) -> AsyncIterator[Rig]:
    """A router with one route, ``default/echo``, and no replica yet."""
    wakes: list[RevisionKey] = []
    errors: list[tuple[RevisionKey, str]] = []
    firsts: list[tuple[RevisionKey, str, float]] = []
    routes, gates = Routes(), Gates(wakes.append, hold=hold)
    routes.set("default", "echo", (RouteTarget(KEY, 100),))
    gates.ensure(KEY, limits or RevisionLimits())
    router = Router(
        routes,
        gates,
        settings=settings,
        on_replica_error=lambda key, replica: errors.append((key, replica)),
        on_first_answer=lambda key, replica, seconds: firsts.append((key, replica, seconds)) or {},
        **kwargs,
    )
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    await router.start(listener)
    one = Rig(router, routes, gates, port, wakes, errors, firsts)
    try:
        yield one
    finally:
        for client in one.clients:
            client.abort()
        await router.stop(grace)
        for replica in one.replicas:
            await replica.stop()
        for gate in gates:
            assert (gate.held, gate.in_flight, gate.held_bytes) == (0, 0, 0), "a request left a trace"
