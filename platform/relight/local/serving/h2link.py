"""One HTTP/2 connection, a client's or to a replica: streams in both directions, flow controlled.

A stream is passed from one connection to another, and the two have readers of different patience. So what comes is
credited to the connection at once, or one slow stream would stop all others, but to its own stream only when it has
been passed on: a stream never holds more than ``WINDOW`` bytes here. What goes waits per stream for the peer's windows
and for the socket.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Protocol, cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame

from relight.local.serving.h2frames import PREFACE, Frames, FrameTooLarge, GoAway

WINDOW = 256 * 1024
"""Bytes of a stream that may be on their way or wait here, in each direction."""
CONNECTION_WINDOW = 16 * 2**20
"""Bytes of all streams of a connection that may be on their way; waiting is bounded per stream."""
FRAME = 64 * 1024
"""Largest frame taken: four times the least that HTTP/2 allows, for each costs the same work."""
STREAMS = 128
"""Streams that a client may have open on one connection; a gRPC client opens another connection, or waits."""

Header = tuple[bytes, bytes]
_GONE = (H2Error, KeyError)
"""What h2 raises for a stream that has ended meanwhile."""


class Sink(Protocol):
    """Who is told of what comes on a stream, until it is over in both directions."""

    def head(self, headers: list[Header], ended: bool) -> None:
        """``ended``: nothing follows, and ``end`` is not called. gRPC tells an error by such an answer."""
        ...

    def data(self, data: bytes) -> None: ...

    def end(self, trailers: list[Header] | None) -> None: ...

    def reset(self, code: int) -> None:
        """The peer ended the stream, in both directions."""
        ...

    def lost(self, why: str) -> None:
        """The connection is gone."""
        ...

    def passed(self, size: int) -> None:
        """Bytes that were sent have left, so that more may come."""
        ...

    def done(self) -> None:
        """All that was sent has left, its end included."""
        ...


class _Stream:
    """One stream: who hears of it, what waits to be sent, what the peer may send more."""

    __slots__ = ("closing", "ended_in", "ended_out", "owed", "parts", "sink", "size", "trailers")

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.parts: deque[bytes] = deque()
        self.size = 0
        self.owed = 0
        self.closing = False
        """Nothing follows what waits."""
        self.trailers: list[Header] | None = None
        self.ended_in = False
        self.ended_out = False


class Link(asyncio.Protocol):
    """See the module."""

    def __init__(self, *, client_side: bool) -> None:
        self._h2 = H2Connection(
            H2Configuration(
                client_side=client_side,
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        values = {
            SettingCodes.INITIAL_WINDOW_SIZE: WINDOW,
            SettingCodes.MAX_FRAME_SIZE: FRAME,
            SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS,
            SettingCodes.MAX_HEADER_LIST_SIZE: H2Connection.DEFAULT_MAX_HEADER_LIST_SIZE,
        }
        if client_side:
            values[SettingCodes.ENABLE_PUSH] = 0
        self._h2.local_settings = Settings(client=client_side, initial_values=values)
        self._h2.max_inbound_frame_size = FRAME
        self._frames = Frames(FRAME, skip=0 if client_side else PREFACE)
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, _Stream] = {}
        self._owed = 0
        self._paused = False
        self._in_batch = False
        self.closing = False
        """No new stream begins here: one side has said that it goes away, or the connection is gone."""
        self.why = ""
        """Why the connection ended, once it has."""

    # -- what a subclass says

    def opened(self) -> None:
        """The connection is up."""

    def closed(self) -> None:
        """The connection is gone, and every sink has been told."""

    def requested(self, stream_id: int) -> Sink | None:
        """The peer opens a stream. None: it is refused."""
        return None

    def settled(self) -> None:
        """A stream is over."""

    # -- used by who passes streams on

    @property
    def streams(self) -> int:
        """Streams that are not over."""
        return len(self._streams)

    @property
    def room(self) -> bool:
        """Whether the peer takes one more stream."""
        return not self.closing and len(self._streams) < self._h2.remote_settings.max_concurrent_streams

    def buffered(self) -> int:
        """Bytes kept for the peer."""
        waiting = sum(stream.size for stream in self._streams.values())
        return waiting + (self._transport.get_write_buffer_size() if self._transport is not None else 0)

    def open_stream(self, sink: Sink, headers: list[Header], *, ended: bool) -> int | None:
        """Begin a stream of our own; None where the connection has no more. ``ended``: the head is all of it."""
        try:
            stream_id = self._h2.get_next_available_stream_id()
            self._h2.send_headers(stream_id, headers, end_stream=ended)
        except _GONE:
            return None
        stream = self._streams[stream_id] = _Stream(sink)
        stream.closing = stream.ended_out = ended
        self._flush()
        return stream_id

    def send_head(self, stream_id: int, headers: list[Header], *, ended: bool = False) -> None:
        """Begin an answer; ``ended``: the head is all of it."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        try:
            self._h2.send_headers(stream_id, headers, end_stream=ended)
        except _GONE:
            return
        self._flush()
        if ended:
            stream.closing = stream.ended_out = True
            stream.sink.done()
            self._over(stream_id, stream)

    def send(self, stream_id: int, data: bytes) -> None:
        """Send, when the peer takes it. Nothing happens on a stream that is over."""
        stream = self._streams.get(stream_id)
        if stream is not None and data:
            stream.parts.append(data)
            stream.size += len(data)
            self._pump(stream_id, stream)
            self._flush()

    def send_end(self, stream_id: int, trailers: list[Header] | None = None) -> None:
        """Nothing follows what was sent."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.closing:
            stream.closing, stream.trailers = True, trailers
            self._pump(stream_id, stream)
            self._flush()

    def send_reset(self, stream_id: int, code: int) -> None:
        """End a stream at once, in both directions; what waits is dropped. Idempotent."""
        if self._streams.pop(stream_id, None) is None:
            return
        with suppress(*_GONE):
            self._h2.reset_stream(stream_id, code)
        self._flush()
        self.settled()

    def credit(self, stream_id: int, size: int) -> None:
        """Data of a stream has been passed on: the peer may send as much again."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.ended_in:
            return
        stream.owed += size
        if stream.owed >= WINDOW // 2:
            owed, stream.owed = stream.owed, 0
            with suppress(*_GONE):
                self._h2.increment_flow_control_window(owed, stream_id)
            self._flush()

    def go_away(self) -> None:
        """Take no new streams, and say so; those that are open go on.

        Written past h2, which would take this for the end of the whole connection.
        """
        if self.closing or self._transport is None:
            return
        self.closing = True
        frame = GoAwayFrame(0)
        frame.last_stream_id = self._h2.highest_inbound_stream_id
        self._flush()
        self._transport.write(frame.serialize())

    def close(self) -> None:
        """Close once everything written is with the peer."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports derive from none of asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW)
        self._flush()
        self.opened()

    def data_received(self, data: bytes) -> None:
        try:
            events = self._h2.receive_data(self._frames.pass_on(data))
        except FrameTooLarge:
            self._h2.close_connection(ErrorCodes.FRAME_SIZE_ERROR)
            self._give_up(f"it does not speak HTTP/2 as it should: a frame of more than {FRAME} bytes")
            return
        except H2Error as error:
            # h2 has written the reason into a GOAWAY.
            self._give_up(f"it does not speak HTTP/2 as it should: {error}")
            return
        self._in_batch = True
        try:
            for event in events:
                self._happened(event)
            while self._frames.went_away:
                self._went_away(self._frames.went_away.pop(0))
        finally:
            self._in_batch = False
        if self._owed >= CONNECTION_WINDOW // 4:
            owed, self._owed = self._owed, 0
            with suppress(*_GONE):
                self._h2.increment_flow_control_window(owed)
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._end("its connection was closed" if error is None else f"its connection was lost: {error}")
        self.closed()

    def pause_writing(self) -> None:
        self._paused = True
        # Who does not read gets no answers to pings and settings either: they would pile up.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        self._pump_all()

    # -- inside

    def _happened(self, event: Event) -> None:
        match event:
            case RequestReceived(stream_id=stream_id, headers=headers, stream_ended=ended):
                self._requested(stream_id or 0, list(headers or ()), ended is not None)
            case ResponseReceived(stream_id=stream_id, headers=headers, stream_ended=ended):
                if stream := self._streams.get(stream_id or 0):
                    self._head(stream_id or 0, stream, list(headers or ()), ended is not None)
            case DataReceived():
                self._data(event)
            case TrailersReceived(stream_id=stream_id, headers=headers):
                self._ended(stream_id or 0, list(headers or ()))
            case StreamEnded(stream_id=stream_id):
                self._ended(stream_id or 0, None)
            case StreamReset(stream_id=stream_id, error_code=code):
                self._reset(stream_id or 0, int(code or 0))
            case WindowUpdated(stream_id=stream_id) if stream_id:
                if stream := self._streams.get(stream_id):
                    self._pump(stream_id, stream)
            case WindowUpdated() | RemoteSettingsChanged():
                self._pump_all()

    def _requested(self, stream_id: int, headers: list[Header], ended: bool) -> None:
        sink = None if self.closing else self.requested(stream_id)
        if sink is None:
            with suppress(*_GONE):
                self._h2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        stream = self._streams[stream_id] = _Stream(sink)
        self._head(stream_id, stream, headers, ended)

    def _head(self, stream_id: int, stream: _Stream, headers: list[Header], ended: bool) -> None:
        # Noted first: what the sink does may end the other direction, and then the stream is over.
        stream.ended_in = ended
        stream.sink.head(headers, ended)
        self._over(stream_id, stream)

    def _data(self, event: DataReceived) -> None:
        whole, data = event.flow_controlled_length or 0, event.data or b""
        self._owed += whole
        stream = self._streams.get(event.stream_id or 0)
        if stream is None:
            return
        if whole > len(data):
            self.credit(event.stream_id or 0, whole - len(data))
        if data:
            stream.sink.data(data)

    def _ended(self, stream_id: int, trailers: list[Header] | None) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.ended_in:
            stream.ended_in = True
            stream.sink.end(trailers)
            self._over(stream_id, stream)

    def _reset(self, stream_id: int, code: int) -> None:
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            stream.sink.reset(code)
            self.settled()

    def _over(self, stream_id: int, stream: _Stream) -> None:
        if stream.ended_in and stream.ended_out and self._streams.get(stream_id) is stream:
            del self._streams[stream_id]
            self.settled()

    def _went_away(self, said: GoAway) -> None:
        """The peer takes no more streams; those that it took go on."""
        self.closing = True
        if said.code:
            self._give_up(f"it ended the connection with code {said.code}")
            return
        if self._h2.config.client_side:
            for stream_id in [one for one in self._streams if one > said.last]:
                self._reset(stream_id, ErrorCodes.REFUSED_STREAM)
        self.settled()

    def _pump_all(self) -> None:
        """A frame of each stream in turn, for as long as one goes."""
        moving = True
        while moving and not self._paused:
            moving = False
            for stream_id, stream in list(self._streams.items()):
                moving = self._pump(stream_id, stream, frames=1) or moving
            self._flush()

    def _pump(self, stream_id: int, stream: _Stream, frames: int = -1) -> bool:
        """Send what the windows allow, at most so many frames; whether anything went."""
        if stream.ended_out:
            return False
        sent = 0
        try:
            while stream.parts and not self._paused and frames:
                part = stream.parts[0]
                window = self._h2.local_flow_control_window(stream_id)
                size = min(len(part), window, self._h2.max_outbound_frame_size)
                if size <= 0:
                    break
                stream.parts.popleft()
                if size < len(part):
                    stream.parts.appendleft(part[size:])
                    part = part[:size]
                stream.ended_out = stream.closing and not stream.parts and stream.trailers is None
                self._h2.send_data(stream_id, part, end_stream=stream.ended_out)
                stream.size -= size
                sent += size
                frames -= 1
            if stream.closing and not stream.parts and not stream.ended_out:
                stream.ended_out = True
                if stream.trailers is None:
                    self._h2.end_stream(stream_id)
                else:
                    self._h2.send_headers(stream_id, stream.trailers, end_stream=True)
        except _GONE:
            # It was reset in the very batch that is being read, which will tell.
            stream.parts.clear()
            return False
        if sent:
            stream.sink.passed(sent)
        if stream.ended_out:
            stream.sink.done()
            self._over(stream_id, stream)
        return sent > 0

    def _flush(self) -> None:
        """Write what h2 has made; while a batch is read, at its end."""
        if self._in_batch or self._transport is None or self._transport.is_closing():
            return
        data = self._h2.data_to_send()
        if data:
            self._transport.write(data)

    def _give_up(self, why: str) -> None:
        self._in_batch = False
        self.close()
        self._end(why)

    def _end(self, why: str) -> None:
        self.closing = True
        self.why = self.why or why
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.sink.lost(why)
