"""One stream of a client, from its connection to one to a replica, and back.

As an ``Exchange`` of HTTP/1.1 it passes the revision's gate and is held there while there is no replica; its body waits
at the client meanwhile, up to the stream's window. Nothing is sent to a second replica once one has been sent anything:
a replica that was never reached does not count. A reset passes through in both directions, with its code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from h2.errors import ErrorCodes

from relight.base.errors import RelightError
from relight.local.serving.activator import Slot
from relight.local.serving.context import Context
from relight.local.serving.h2heads import (
    Head,
    answer_class,
    find,
    grpc_refusal,
    grpc_trailers,
    own_answer,
    read_head,
    request_head,
)
from relight.local.serving.h2link import Header
from relight.local.serving.metrics import CUT, HANGUP
from relight.local.serving.passage import Passage
from relight.local.serving.refusals import Refusal, answer
from relight.local.serving.routes import TAG_HEADER
from relight.wire.http import Response

if TYPE_CHECKING:
    from relight.local.serving.h2client import H2ClientConnection
    from relight.local.serving.h2replicas import ReplicaLink

MAX_TRIES = 8
"""Connections that are opened for one request, at most."""
FOREVER = float("inf")


class H2Exchange(Passage):
    """See the module. As a sink it hears what the client sends; ``_Answer`` hears the replica."""

    def __init__(self, context: Context, client: H2ClientConnection, stream_id: int, now: float) -> None:
        super().__init__(context, now)
        self.deadline = FOREVER
        self._client = client
        self._id = stream_id
        self._request: Head | None = None
        self._target = b"/"
        self._upstream: ReplicaLink | None = None
        self._upstream_id = 0
        self._parts: list[bytes] = []
        self._complete = False
        self._trailers: list[Header] | None = None
        self._request_id: bytes | None = None
        self._status = 0
        self._passed_on = False
        """The replica has the whole request."""

    @property
    def buffered(self) -> int:
        """Bytes of the request that are kept here."""
        return sum(map(len, self._parts))

    # -- what the client sends

    def head(self, headers: list[Header], ended: bool) -> None:
        self._complete = ended
        request = self._request = read_head(headers)
        self._request_id = request.noted.get(b"x-request-id")
        self._context.deadlines.watched.add(self)
        try:
            self._aim(request)
        except Refusal as error:
            self._refuse(error)
            return
        if self._gate is None:
            self._answer(self._context.pages[request.plain]())
            return
        self._set_deadline(self._deadline)
        self._acquire()

    def _aim(self, request: Head) -> None:
        found, self._by_path = find(self._context.routes, self._context.pages, request)
        if found is None:
            return
        if found.route is None:
            raise Refusal(404, "not_found", found.nobody)
        self._target = found.target
        self._tag = request.noted.get(TAG_HEADER)
        if not self._pick(found.route).h2c:
            self._gate = None
            name = f"{found.route.namespace}/{found.route.name}"
            raise Refusal(505, "http1_only", f"{name} speaks HTTP/1.1; its port would be named h2c for HTTP/2")

    def data(self, data: bytes) -> None:
        if self._upstream is not None:
            self._upstream.send(self._upstream_id, data)
        elif not self._ended:
            self._parts.append(data)
        else:
            # Refused: it is read to its end and dropped.
            self._client.credit(self._id, len(data))

    def end(self, trailers: list[Header] | None) -> None:
        self._complete, self._trailers = True, trailers
        if self._upstream is not None:
            self._upstream.send_end(self._upstream_id, trailers)

    def reset(self, code: int) -> None:
        """The client has given the request up."""
        self._drop_upstream(code)
        self._count(CUT if self._status else HANGUP)
        self.done()

    def lost(self, why: str) -> None:
        self.reset(ErrorCodes.CANCEL)

    def passed(self, size: int) -> None:
        """A part of the answer has left: the replica may send as much again."""
        if self._upstream is not None:
            self._upstream.credit(self._upstream_id, size)

    def done(self) -> None:
        """The client has the whole answer, or wants no more of it."""
        if not self._complete:
            # Whatever else it sends, nobody wants it (RFC 9113, 8.1).
            self._client.send_reset(self._id, ErrorCodes.NO_ERROR)
        self.deadline = FOREVER
        self._context.deadlines.watched.discard(self)
        self._client.forget(self)

    # -- to a replica

    def _wanted(self) -> bool:
        return not self._ended

    def _take(self, slot: Slot) -> None:
        self._slot = slot
        link = self._context.links.take(slot.address)
        if link is None or not self._send(link):
            self._context.tasks.spawn(self._connect(slot), f"h2-connect-{slot.replica_id}")

    async def _connect(self, slot: Slot) -> None:
        links = self._context.links
        for _ in range(MAX_TRIES):
            try:
                opened = await links.open(slot.address)
            except OSError:
                if slot is self._slot and not self._ended:
                    self._refused_by(slot)
                return
            if slot is not self._slot or self._ended:
                return
            link = links.take(slot.address)
            if link is not None and self._send(link):
                return
            if opened.why:
                self.response_lost(opened.why)
                return
            # Others waited for the same connection, and it was full when it was our turn.
        self.response_lost("it takes no more streams")

    def _send(self, link: ReplicaLink) -> bool:
        assert self._request is not None
        assert self._route is not None
        fields, self._request_id = request_head(
            self._request, self._route, self._target, self._by_path, self._client.peer, self._context.random_bits
        )
        bare = self._complete and not self._parts and self._trailers is None
        stream_id = link.open_stream(_Answer(self), fields, ended=bare)
        if stream_id is None:
            return False
        self._upstream, self._upstream_id = link, stream_id
        self._passed_on = bare
        parts, self._parts = self._parts, []
        for part in parts:
            link.send(stream_id, part)
        if self._complete and not bare:
            link.send_end(stream_id, self._trailers)
        return True

    def request_passed(self, size: int) -> None:
        """A part of the request has left: the client may send as much again."""
        self._client.credit(self._id, size)

    def request_done(self) -> None:
        self._passed_on = True

    # -- what the replica answers

    def response_head(self, headers: list[Header], ended: bool) -> None:
        slot = self._slot
        if self._ended or slot is None:
            return
        status = next((value for name, value in headers if name == b":status"), b"")
        self._status = int(status) if status.isdigit() else 502
        self._first_answer(slot)
        fields = [(name, value) for name, value in headers if name != b"x-request-id"]
        fields.append((b"x-request-id", self._request_id or b""))
        if self._request is not None and b"relight-timing" in self._request.noted:
            fields.append((b"server-timing", self._timing(slot)))
        self._touch()
        if ended:
            self._answered(headers)
        self._client.send_head(self._id, fields, ended=ended)

    def response_data(self, data: bytes) -> None:
        self._touch()
        self._client.send(self._id, data)

    def response_end(self, trailers: list[Header] | None) -> None:
        if not self._status:
            self.response_lost("it ended its answer before it began")
            return
        self._answered(trailers)
        self._client.send_end(self._id, trailers)

    def _answered(self, trailers: list[Header] | None) -> None:
        """The replica has said all."""
        upstream, self._upstream = self._upstream, None
        self._count(answer_class(self._status, trailers))
        if upstream is not None and not self._passed_on:
            upstream.send_reset(self._upstream_id, ErrorCodes.NO_ERROR)

    def response_reset(self, code: int) -> None:
        """The replica refuses the stream, or breaks off."""
        self._upstream = None
        self._count(CUT if self._status else "5xx")
        self._client.send_reset(self._id, code)
        self.done()

    def response_lost(self, why: str) -> None:
        self._drop_upstream(ErrorCodes.CANCEL)
        self._fail(Refusal(502, "replica_lost", f"a replica of revision {self._key} failed: {why}"))

    # -- ends

    def on_deadline(self, now: float) -> None:
        self.deadline = FOREVER
        late = self._late()
        if self._ended:
            # The client has not taken what was left of its answer.
            self._client.send_reset(self._id, ErrorCodes.CANCEL)
            self.done()
        elif late is not None:
            self._refuse(late)
        else:
            self._drop_upstream(ErrorCodes.CANCEL)
            age = f"{now - self.arrived:.3g} s"
            said = f"gave no answer within {age}" if not self._status else f"was not done, or silent, after {age}"
            self._fail(Refusal(504, "deadline_exceeded", f"revision {self._key} {said}"))

    def _fail(self, error: Refusal) -> None:
        """The answer, if it has begun, breaks off in a way that its reader notices."""
        if not self._status:
            self._refuse(error)
            return
        self._count(CUT)
        if self._request is not None and self._request.grpc:
            self._client.send_end(self._id, grpc_trailers(error))
        else:
            self._client.send_reset(self._id, ErrorCodes.INTERNAL_ERROR)
            self.done()

    def _refuse(self, error: RelightError | Refusal) -> None:
        """Answer with an error; nothing has been answered yet."""
        if self._request is None or not self._request.grpc:
            self._answer(answer(error, self._target.startswith(b"/v1/")))
            return
        self._drop_parts(f"{error.status // 100}xx")
        self._client.send_head(self._id, grpc_refusal(error, self._request_id), ended=True)

    def _answer(self, response: Response) -> None:
        self._drop_parts(f"{response.status // 100}xx")
        self._client.send_head(self._id, own_answer(response, self._request_id))
        if self._request is not None and self._request.method != b"HEAD":
            self._client.send(self._id, response.body)
        self._client.send_end(self._id)

    def _drop_parts(self, code_class: str) -> None:
        self._count(code_class)
        self._set_deadline(self._context.clock() + self._context.settings.keep_alive)
        self._client.credit(self._id, self.buffered)
        self._parts = []

    def _drop_upstream(self, code: int) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.send_reset(self._upstream_id, code)

    def _touch(self) -> None:
        """The answer moves: it has until the revision's timeout, and until its idle limit where it has one."""
        limits = self._limits
        assert limits is not None
        until = self.arrived + limits.timeout
        self._set_deadline(min(until, self._context.clock() + limits.idle) if limits.idle else until)

    def _set_deadline(self, at: float) -> None:
        self.deadline = at
        if at < self._context.deadlines.next_look:
            self._context.deadlines.arm(at)


class _Answer:
    """The replica's side of an exchange."""

    __slots__ = ("_exchange",)

    def __init__(self, exchange: H2Exchange) -> None:
        self._exchange = exchange

    def head(self, headers: list[Header], ended: bool) -> None:
        self._exchange.response_head(headers, ended)

    def data(self, data: bytes) -> None:
        self._exchange.response_data(data)

    def end(self, trailers: list[Header] | None) -> None:
        self._exchange.response_end(trailers)

    def reset(self, code: int) -> None:
        self._exchange.response_reset(code)

    def lost(self, why: str) -> None:
        self._exchange.response_lost(why)

    def passed(self, size: int) -> None:
        self._exchange.request_passed(size)

    def done(self) -> None:
        self._exchange.request_done()
