"""One request and its answer, from the client's connection to a replica's and back.

::

    new ──► refused ─────────────────────────────────► answered by the router
     │
     └────► held ──► connecting ──► sent ──► head ──► ended
              ▲          │           │        │
              └──────────┴───────────┘        └──────► cut (never a clean-looking end)
               replica refused or lost,
               nothing answered, safe to repeat

Small bodies are whole before a replica is asked for; they are kept until the answer begins, so that the request can be
sent again. Larger ones are passed on as they come and not kept. Whatever happens, ``_end`` is reached once: it gives
the slot back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from relight.base.errors import BadInput, RelightError
from relight.local.serving.activator import Gate, Slot, Waiter
from relight.local.serving.context import Context
from relight.local.serving.heads import identify, request_head
from relight.local.serving.http1 import (
    CONTINUE,
    IDEMPOTENT,
    LAST_CHUNK,
    error_body,
    render,
    status_line,
    without,
)
from relight.local.serving.metrics import CUT, HANGUP, Series
from relight.local.serving.refusals import Refusal, answer
from relight.local.serving.routes import TAG_HEADER, Route
from relight.local.serving.types import RevisionKey, RevisionLimits
from relight.local.serving.upstream import UpstreamConnection
from relight.wire.http import Response

if TYPE_CHECKING:
    from relight.local.serving.downstream import ClientConnection

MAX_TRIES = 3
"""Replicas that one request is sent to, at most: a request that kills its replica must not go through them all."""

LEAST_HELD = 1024
"""Bytes that a held request is counted with at least, for its head and our own objects."""


class Exchange:
    """See the module. Its methods are called by the two connections, on the loop."""

    __slots__ = (
        "_body_buffer",
        "_buffered",
        "_by_path",
        "_client",
        "_close_delimited",
        "_context",
        "_deadline",
        "_ended",
        "_events",
        "_gate",
        "_held_until",
        "_key",
        "_limits",
        "_out",
        "_rechunk",
        "_request_id",
        "_reusable",
        "_route",
        "_series",
        "_slot",
        "_status",
        "_tries",
        "_unframed",
        "_upstream",
        "_waiter",
        "arrived",
        "chunked",
        "complete",
        "content_length",
        "dispatched",
        "error",
        "keep_alive",
        "last",
        "lines",
        "local",
        "method",
        "noted",
        "streaming",
        "target",
        "tunnel",
        "upgrade",
        "version",
    )

    def __init__(
        self, context: Context, client: ClientConnection, method: bytes, version: str, keep_alive: bool, now: float
    ) -> None:
        self.arrived = now
        self.method = method
        self.version = version
        self.keep_alive = keep_alive
        self.lines: list[bytes] = []
        self.noted: dict[bytes, bytes] = {}
        self.content_length: int | None = None
        self.chunked = False
        self.streaming = False
        """The body is passed on as it comes, not kept."""
        self.upgrade = False
        self.complete = False
        """The whole request has been read."""
        self.dispatched = False
        self.last = False
        """Nothing that follows on this connection can be read."""
        self.tunnel = False
        self.error: RelightError | Refusal | None = None
        self.local: Response | None = None
        self._context = context
        self._client = client
        self._route: Route | None = None
        self.target = b"/"
        self._by_path = True
        self._key: RevisionKey | None = None
        self._limits: RevisionLimits | None = None
        self._gate: Gate | None = None
        self._series: Series | None = None
        self._waiter: Waiter | None = None
        self._held_until = 0.0
        self._slot: Slot | None = None
        self._upstream: UpstreamConnection | None = None
        self._tries = 0
        self._deadline = 0.0
        self._body_buffer: list[bytes] = []
        self._buffered = 0
        self._status = 0
        self._out: list[bytes] = []
        self._rechunk = False
        self._close_delimited = False
        self._unframed = False
        self._reusable = False
        self._ended = False
        self._events = False
        self._request_id = b""

    # -- the request, as the client's connection reads it

    def aim(self, route: Route, by_path: bool) -> None:
        """Whose request this is, and where it goes. Raises Refusal where that is nowhere."""
        self._route = route
        self._by_path = by_path
        try:
            tag, routes = self.noted.get(TAG_HEADER), self._context.routes
            self._key = routes.pick(route, tag, self._context.random01()).revision
        except BadInput as error:
            raise Refusal(404, "not_found", f"{route.namespace}/{route.name}: {error.message}") from None
        self._gate = self._context.gates.get(self._key)
        if self._gate is None:
            raise Refusal(503, "not_ready", f"revision {self._key} is not set up on this machine yet")
        self._limits = limits = self._gate.limits
        if limits.h2c:
            name = f"{route.namespace}/{route.name}"
            raise Refusal(505, "h2c_only", f"{name} speaks HTTP/2 with prior knowledge only: its port is named h2c")
        self._deadline = self.arrived + min(limits.timeout, limits.response_start)
        self._series = self._context.metrics.series(self._key)

    @property
    def deadline(self) -> float:
        """When the answer must have begun; where it is not known whose it is, when the request must be whole."""
        return self._deadline or self.arrived + self._context.settings.head_timeout

    @property
    def openai(self) -> bool:
        return self.target.startswith(b"/v1/")

    @property
    def buffered(self) -> int:
        """Bytes of the body that are kept here."""
        return self._buffered

    def body_received(self, body: bytes) -> None:
        upstream = self._upstream
        if self._ended:
            return
        if upstream is not None and self.streaming:
            upstream.write(b"%x\r\n%b\r\n" % (len(body), body) if self.chunked else body)
            return
        self._body_buffer.append(body)
        self._buffered += len(body)
        if self.streaming and self._buffered >= self._context.settings.body_bytes:
            self._client.block_upload(True)

    def body_complete(self) -> None:
        self.complete = True
        if self.streaming and self.chunked and self._upstream is not None and not self._ended:
            self._upstream.write(LAST_CHUNK)

    @property
    def may_start(self) -> bool:
        """Whether to go on before the body is whole: it is passed on as it comes, or it is neither wanted nor sent."""
        refused = self.error is not None or self.local is not None
        return self.streaming or self.last or (refused and b"expect" in self.noted)

    @property
    def asks_for_body(self) -> bool:
        """Whether to say 100 Continue at once: to bodies that are read whole before a replica is asked for."""
        return b"expect" in self.noted and not self.may_start and bool(self.content_length) and self.version != "1.0"

    # -- to a replica

    def dispatch(self) -> None:
        """Ask for a replica; called once, when a small request is whole or the head of a large one is."""
        self.dispatched = True
        if self.local is not None:
            self._answer(self.local)
        elif self.error is not None:
            self._refuse(self.error)
        else:
            self._client.set_deadline(self._deadline)
            self._acquire()

    def _acquire(self) -> None:
        gate = self._gate
        assert gate is not None
        slot = gate.try_acquire()
        if slot is not None:
            self._take(slot)
            return
        try:
            waiter = gate.hold(max(self._buffered, LEAST_HELD), self._slot_came, self._gate_failed)
        except RelightError as error:
            self._refuse(error)
            return
        if self._ended or self._slot is not None:
            # Being woken, the revision had its answer at once.
            return
        self._waiter = waiter
        longest = gate.hold_limits.max_seconds
        self._held_until = self._deadline if not longest else min(self._deadline, self._waiter.since + longest)
        self._client.set_deadline(self._held_until)

    def _slot_came(self, slot: Slot) -> bool:
        self._waiter = None
        if self._client.gone():
            self._end(HANGUP)
            self._client.vanish()
            return False
        self._client.set_deadline(self._deadline)
        self._take(slot)
        return True

    def _gate_failed(self, error: RelightError) -> None:
        self._waiter = None
        self._refuse(error)

    def _take(self, slot: Slot) -> None:
        self._slot = slot
        connection = self._context.pools.take(slot.address)
        if connection is not None:
            self._send(connection)
        else:
            self._context.tasks.spawn(self._connect(slot), f"connect-{slot.replica_id}")

    async def _connect(self, slot: Slot) -> None:
        address = slot.address
        connection = UpstreamConnection(address, self._context.pools)
        try:
            await asyncio.get_running_loop().create_connection(lambda: connection, address.host, address.port)
        except OSError:
            if slot is self._slot and not self._ended:
                self._refused_by(slot)
            return
        if slot is self._slot and not self._ended:
            self._send(connection)
        else:
            # The client left meanwhile; the connection is as good as new.
            self._context.pools.put(connection)

    def _send(self, connection: UpstreamConnection) -> None:
        self._upstream = connection
        self._tries += 1
        connection.attach(self, self.method == b"HEAD")
        parts = self._head()
        body = self._body_buffer
        if not self.streaming:
            parts += body
            connection.write(b"".join(parts))
            return
        if self.chunked:
            parts += [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in body if piece]
            if self.complete:
                parts.append(LAST_CHUNK)
        else:
            parts += body
        self._body_buffer = []
        self._buffered = 0
        connection.write(b"".join(parts))
        if not self.complete and b"expect" in self.noted and self.version != "1.0":
            self._client.write(CONTINUE)
        if self._upstream is connection:
            self._client.block_upload(connection.write_paused)

    def _head(self) -> list[bytes]:
        """The head of the upstream request, with the framing of the body as it will be sent."""
        noted, route = self.noted, self._route
        assert route is not None
        if not self._request_id:
            self._request_id, noted[b"traceparent"] = identify(noted, self._context.random_bits)
        ids = (self._request_id, noted[b"traceparent"])
        teller = self._client.teller
        parts = request_head(self.method, self.target, route, self._by_path, self.lines, noted, teller, ids)
        if self.streaming and self.chunked:
            parts.append(b"transfer-encoding: chunked\r\n")
        elif self.streaming:
            parts.append(b"content-length: %d\r\n" % (self.content_length or 0))
        elif self._buffered or self.content_length is not None or self.chunked:
            parts.append(b"content-length: %d\r\n" % self._buffered)
        parts.append(b"connection: upgrade\r\nupgrade: %b\r\n\r\n" % noted[b"upgrade"] if self.upgrade else b"\r\n")
        return parts

    # -- faults of replicas

    def _refused_by(self, slot: Slot) -> None:
        """Nothing was sent: another replica takes the request, or it is held until there is one."""
        assert self._gate is not None
        assert self._key is not None
        self._gate.suspect(slot.replica_id)
        self._slot = None
        self._gate.release(slot)
        self._acquire()
        self._context.on_replica_error(self._key, slot.replica_id)

    def _again(self, what: str) -> None:
        """The request was sent and not answered; it is one that may be sent twice."""
        if self._tries >= MAX_TRIES:
            self._refuse(Refusal(502, "replica_lost", f"a replica of revision {self._key} {what}"))
        elif not self._ended:
            self._acquire()

    def upstream_failed(self, what: str) -> None:
        """The replica's answer cannot be read."""
        self._drop_upstream()
        if self._status:
            self.cut(f"a replica of revision {self._key} broke off: {what}")
        else:
            self._refuse(Refusal(502, "replica_lost", f"a replica of revision {self._key} failed: {what}"))

    def upstream_ended(self, clean: bool) -> None:
        """The replica's connection has ended. Between head and end this is how an answer without length ends."""
        if self._ended:
            return
        if self.tunnel:
            self._drop_upstream()
            self._end("1xx")
            self._client.close()
        elif self._status:
            if clean and self._close_delimited:
                self._reusable = False
                self.flush(True)
            else:
                self.upstream_failed("its connection closed before the answer's end")
        elif self.method in IDEMPOTENT and not self.streaming and self._gate is not None:
            self._drop_upstream()
            slot, self._slot = self._slot, None
            if slot is not None:
                self._gate.release(slot)
            self._again("closed the connection without an answer")
        else:
            self.upstream_failed("its connection closed without an answer")

    def _drop_upstream(self) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.abort()

    def upload_blocked(self, blocked: bool) -> None:
        """The replica does not take (or takes again) what we send."""
        self._client.block_upload(blocked)

    # -- the answer, as the replica's connection reads it

    def response_head(self, status: int, lines: list[bytes], noted: dict[bytes, bytes], keep_alive: bool) -> None:
        context, client = self._context, self._client
        limits, slot = self._limits, self._slot
        assert limits is not None
        assert slot is not None
        assert self._gate is not None
        assert self._key is not None
        self._status = status
        self._reusable = keep_alive
        self._body_buffer = []
        if self._gate.woken_at is not None:
            woken, self._gate.woken_at = self._gate.woken_at, None
            context.on_first_answer(self._key, slot.replica_id, context.clock() - woken)
        out = self._out
        out.append(status_line(status))
        connection = noted.get(b"connection")
        out += lines if connection is None else without(lines, connection)
        out.append(b"x-request-id: %b\r\n" % self._request_id)
        if b"content-type" in noted:
            out.append(b"content-type: %b\r\n" % noted[b"content-type"])
        if b"relight-timing" in self.noted:
            out.append(self._timing(slot))
        if status == 101:
            out.append(b"connection: upgrade\r\nupgrade: %b\r\n\r\n" % noted.get(b"upgrade", b""))
            return
        self._deadline = self.arrived + limits.timeout
        idle = limits.idle
        client.set_deadline(self._deadline if not idle else min(self._deadline, context.clock() + idle))
        length = noted.get(b"content-length")
        if length is not None:
            if status != 204:
                out.append(b"content-length: %b\r\n" % length)
        elif self.method != b"HEAD" and status not in (204, 304):
            self._close_delimited = b"transfer-encoding" not in noted
            self._rechunk = self.version != "1.0"
            if self._rechunk:
                out.append(b"transfer-encoding: chunked\r\n")
            else:
                self.keep_alive = False
                self._unframed = True
        if not self.complete or context.draining:
            self.keep_alive = False
        if not self.keep_alive:
            out.append(b"connection: close\r\n\r\n")
        else:
            out.append(b"connection: keep-alive\r\n\r\n" if self.version == "1.0" else b"\r\n")
        if noted.get(b"content-type", b"").lower().startswith(b"text/event-stream"):
            self._events = True

    def _timing(self, slot: Slot) -> bytes:
        total = (self._context.clock() - self.arrived) * 1000
        return b"server-timing: hold;dur=%.3f, total;dur=%.3f\r\n" % (slot.held * 1000, total)

    def response_body(self, body: bytes) -> None:
        self._out.append(b"%x\r\n%b\r\n" % (len(body), body) if self._rechunk else body)

    def flush(self, done: bool) -> None:
        """Pass on what came in one read of the replica's connection; ``done``: it was the last of the answer."""
        if self._ended:
            return
        out, self._out = self._out, []
        if done and self._rechunk:
            out.append(LAST_CHUNK)
        if out:
            self._client.write(b"".join(out))
        if done:
            upstream, self._upstream = self._upstream, None
            if upstream is not None:
                upstream.let_go(self._reusable and self.complete)
            self._end(f"{self._status // 100}xx")
            self._client.exchange_done(self)
        elif self._limits is not None and self._limits.idle and self._status:
            self._client.set_deadline(min(self._deadline, self._context.clock() + self._limits.idle))

    def download_blocked(self, blocked: bool) -> None:
        """The client does not take (or takes again) what we send."""
        if self._upstream is not None:
            if blocked:
                self._upstream.pause()
            else:
                self._upstream.resume()

    # -- after 101: bytes both ways

    def tunnel_open(self) -> bool:
        """False where the replica switched protocols though nobody had asked."""
        if not self.upgrade or self._status != 101:
            self._status = 0
            self._out = []
            self.upstream_failed("it switched protocols unasked")
            return False
        self.tunnel = True
        self._tunnel_touch()
        out, self._out = self._out, []
        self._client.write(b"".join(out))
        self._client.tunnel_opened()
        return True

    def tunnel_up(self, data: bytes) -> None:
        if self._upstream is not None:
            self._tunnel_touch()
            self._upstream.write(data)

    def tunnel_down(self, data: bytes) -> None:
        self._tunnel_touch()
        self._client.write(data)

    def _tunnel_touch(self) -> None:
        # A socket that is open for good is what an upgrade is for: only the idle limit counts from here on.
        idle = self._limits.idle if self._limits is not None else 0.0
        self._client.set_deadline(self._context.clock() + idle if idle else float("inf"))

    # -- ends

    def fail(self, refusal: Refusal) -> None:
        """The rest of the request turned out to be malformed."""
        self.keep_alive = False
        if self._status:
            self.cut(refusal.message)
        else:
            self._refuse(refusal)

    def expired(self, now: float) -> None:
        """A deadline of this request has passed."""
        if self._waiter is not None and self._gate is not None:
            error = self._gate.late(self._waiter, self._held_until < self._deadline)
            self._refuse(error)
        elif self.tunnel:
            self.cut(f"nothing passed between client and revision {self._key} for the idle limit")
        elif self._status:
            late = "was not done in time" if now >= self._deadline else "paused for longer than its idle limit"
            self.cut(f"the answer of revision {self._key} {late}")
        elif not self.dispatched:
            self._refuse(Refusal(408, "request_timeout", f"the request's body was not whole after {self._age(now)} s"))
        else:
            self._drop_upstream()
            self._refuse(
                Refusal(504, "deadline_exceeded", f"revision {self._key} gave no answer within {self._age(now)} s")
            )

    def _age(self, now: float) -> str:
        return f"{now - self.arrived:.3g}"

    def abandon(self) -> None:
        """The client has gone: leave the queue, or cancel what the replica does for it."""
        self._drop_upstream()
        self._end("1xx" if self.tunnel else CUT if self._status else HANGUP)

    def cut(self, why: str) -> None:
        """The answer breaks off in a way that its reader notices; a stream of events says why before it does."""
        self._drop_upstream()
        out, self._out = self._out, []
        if self._events and self._rechunk:
            event = b"\n\nevent: error\ndata: %b\n\n" % error_body(504, "cut", why, openai=True)
            out.append(b"%x\r\n%b\r\n" % (len(event), event))
        self._end(CUT)
        self._client.cut(b"".join(out), why, not self._unframed)

    def _refuse(self, error: RelightError | Refusal) -> None:
        """Answer with an error; nothing has been answered yet."""
        self._answer(answer(error, self.openai))

    def _answer(self, response: Response) -> None:
        if self._ended:
            return
        self._drop_upstream()
        self._status = response.status
        if not self.complete or self._context.draining or self.upgrade:
            self.keep_alive = False
        extra: list[bytes] = []
        request_id = self._request_id or self.noted.get(b"x-request-id")
        if request_id:
            extra.append(b"x-request-id: %b\r\n" % request_id)
        if self.keep_alive and self.version == "1.0":
            extra.append(b"connection: keep-alive\r\n")
        self._end(f"{response.status // 100}xx")
        self._client.write(
            render(response, head_only=self.method == b"HEAD", close=not self.keep_alive, extra=tuple(extra))
        )
        self._client.exchange_done(self)

    def _end(self, code_class: str) -> None:
        if self._ended:
            return
        self._ended = True
        self._body_buffer = []
        self._buffered = 0
        waiter, self._waiter = self._waiter, None
        slot, self._slot = self._slot, None
        if self._series is not None:
            self._series.observe(code_class, self._context.clock() - self.arrived)
        if self._gate is not None:
            if waiter is not None:
                self._gate.leave(waiter)
            if slot is not None:
                self._gate.release(slot)
