"""HTTP/2 as raw as h2 gives it: a client that says what it is told to, and a replica that answers as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

from relight.local.serving.types import Address

Headers = list[tuple[str, str]]


@dataclass
class Stream:
    """What has come on one stream."""

    number: int
    headers: dict[str, str] = field(default_factory=dict)
    trailers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False
    reset: int | None = None
    lost: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def over(self) -> bool:
        return self.ended or self.reset is not None or self.lost

    async def until(self, condition: Callable[[Stream], bool]) -> Stream:
        """Wait for something to come; a stream that ends without it fails."""
        while not condition(self):
            assert not self.over, self
            self.changed.clear()
            await self.changed.wait()
        return self

    async def whole(self) -> Stream:
        return await self.until(lambda stream: stream.over)


class Peer(asyncio.Protocol):
    """One connection. ``read`` off: what comes is not credited, so that the other side may send no more."""

    def __init__(self, *, client_side: bool, read: bool = True, streams: int = 100) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=client_side, header_encoding="utf-8"))
        limits = {SettingCodes.MAX_CONCURRENT_STREAMS: streams}
        self.h2.local_settings = Settings(client=client_side, initial_values=limits)
        self.read = read
        self.streams: dict[int, Stream] = {}
        self.gone = asyncio.Event()
        self.went_away = False
        self.on_request: Callable[[Stream], None] = lambda stream: None
        self._window = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.h2.initiate_connection()
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        self.gone.set()
        self._window.set()
        for stream in self.streams.values():
            stream.lost = not stream.over
            stream.changed.set()

    def data_received(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            self._happened(event)
        self._window.set()
        self.flush()

    def _happened(self, event: Event) -> None:
        if isinstance(event, ConnectionTerminated):
            self.went_away = True
            return
        number = getattr(event, "stream_id", None)
        if not number:
            return
        stream = self.streams.setdefault(number, Stream(number))
        match event:
            case RequestReceived(headers=headers) | ResponseReceived(headers=headers):
                stream.headers = dict(headers)
                if isinstance(event, RequestReceived):
                    self.on_request(stream)
            case TrailersReceived(headers=headers):
                stream.trailers = dict(headers)
            case DataReceived(data=data):
                stream.body += data
                if self.read and event.flow_controlled_length:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, number)
            case StreamEnded():
                stream.ended = True
            case StreamReset():
                stream.reset = int(event.error_code)
        stream.changed.set()

    def flush(self) -> None:
        self.transport.write(self.h2.data_to_send())

    def accept(self, stream: Stream) -> None:
        """Credit all that has come so far on a stream."""
        self.h2.increment_flow_control_window(len(stream.body))
        self.h2.increment_flow_control_window(len(stream.body), stream.number)
        self.flush()

    async def send(self, number: int, data: bytes, *, end: bool = False) -> None:
        """Send as the other side's windows allow."""
        while data:
            window = min(self.h2.local_flow_control_window(number), self.h2.max_outbound_frame_size)
            if window <= 0:
                self._window.clear()
                await self._window.wait()
                assert not self.gone.is_set()
                continue
            self.h2.send_data(number, data[:window])
            data = data[window:]
            self.flush()
        if end:
            self.h2.end_stream(number)
            self.flush()

    def head(self, number: int, headers: Headers, *, end: bool = False) -> None:
        self.h2.send_headers(number, headers, end_stream=end)
        self.flush()

    def reset(self, number: int, code: int) -> None:
        self.h2.reset_stream(number, code)
        self.flush()

    def abort(self) -> None:
        self.transport.abort()


class H2Client(Peer):
    """A client's connection to the router."""

    def __init__(self, *, read: bool = True) -> None:
        super().__init__(client_side=True, read=read)

    def ask(
        self,
        path: str = "/",
        *more: tuple[str, str],
        authority: str = "echo.default.localhost",
        method: str = "POST",
        end: bool = False,
    ) -> Stream:
        number = self.h2.get_next_available_stream_id()
        self.streams[number] = Stream(number)
        pseudo = [(":method", method), (":scheme", "http"), (":authority", authority), (":path", path)]
        self.head(number, [*pseudo, *more], end=end)
        return self.streams[number]

    async def call(self, body: bytes = b"", path: str = "/", *more: tuple[str, str], **kwargs: str) -> Stream:
        """One request, answered whole."""
        stream = self.ask(path, *more, end=not body, **kwargs)
        if body:
            await self.send(stream.number, body, end=True)
        return await stream.whole()


Handler = Callable[["H2Replica", Peer, Stream], Awaitable[None]]


async def echo(replica: H2Replica, peer: Peer, stream: Stream) -> None:
    """The body as it came, the path in a header, the number of bytes in a trailer."""
    await stream.whole()
    peer.head(stream.number, [(":status", "200"), ("content-type", "text/plain"), ("path", stream.headers[":path"])])
    await peer.send(stream.number, stream.body)
    peer.head(stream.number, [("bytes", str(len(stream.body)))], end=True)


class H2Replica:
    """A tiny HTTP/2 server."""

    def __init__(self, handler: Handler = echo, *, read: bool = True, streams: int = 100) -> None:
        self.handler = handler
        self.streams = streams
        self.read = read
        self.peers: list[Peer] = []
        self.seen: list[Stream] = []
        self.address = Address("127.0.0.1", 0)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, "127.0.0.1", self.address.port)
        self.address = Address("127.0.0.1", self._server.sockets[0].getsockname()[1])

    def _accept(self) -> Peer:
        peer = Peer(client_side=False, read=self.read, streams=self.streams)
        peer.on_request = lambda stream: self._serve(peer, stream)
        self.peers.append(peer)
        return peer

    def _serve(self, peer: Peer, stream: Stream) -> None:
        self.seen.append(stream)
        task = asyncio.get_running_loop().create_task(self._handle(peer, stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, peer: Peer, stream: Stream) -> None:
        try:
            await self.handler(self, peer, stream)
        except H2Error:
            assert stream.reset is not None or peer.gone.is_set()

    async def stop(self) -> None:
        """As a killed process: no more listener, connections reset."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for peer in self.peers:
            if not peer.gone.is_set():
                peer.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def connected(port: int, *, read: bool = True) -> H2Client:
    client = H2Client(read=read)
    await asyncio.get_running_loop().create_connection(lambda: client, "127.0.0.1", port)
    return client
