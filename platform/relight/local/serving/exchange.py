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

from relight.base.errors import RelightError
from relight.local.serving.activator import Slot
from relight.local.serving.answering import Answering
from relight.local.serving.context import Context
from relight.local.serving.heads import identify, request_head
from relight.local.serving.http1 import (
    CONTINUE,
    IDEMPOTENT,
    LAST_CHUNK,
)
from relight.local.serving.metrics import CUT, HANGUP
from relight.local.serving.refusals import Refusal
from relight.local.serving.routes import TAG_HEADER, Route
from relight.local.serving.upstream import UpstreamConnection
from relight.wire.http import Response

if TYPE_CHECKING:
    from relight.local.serving.downstream import ClientConnection

MAX_TRIES = 3
"""Replicas that one request is sent to, at most: a request that kills its replica must not go through them all."""


class Exchange(Answering):
    """See the module. Its methods are called by the two connections, on the loop."""

    __slots__ = (
        "_body_buffer",
        "_buffered",
        "_tries",
        "chunked",
        "content_length",
        "dispatched",
        "error",
        "last",
        "lines",
        "local",
        "streaming",
    )

    def __init__(
        self, context: Context, client: ClientConnection, method: bytes, version: str, keep_alive: bool, now: float
    ) -> None:
        super().__init__(context, client, method, version, keep_alive, now)
        self.lines: list[bytes] = []
        self.content_length: int | None = None
        self.chunked = False
        self.streaming = False
        """The body is passed on as it comes, not kept."""
        self.dispatched = False
        self.last = False
        """Nothing that follows on this connection can be read."""
        self.error: RelightError | Refusal | None = None
        self.local: Response | None = None
        self._tries = 0
        self._body_buffer: list[bytes] = []
        self._buffered = 0

    # -- the request, as the client's connection reads it

    def aim(self, route: Route, by_path: bool) -> None:
        """Whose request this is, and where it goes. Raises Refusal where that is nowhere."""
        self._by_path = by_path
        self._tag = self.noted.get(TAG_HEADER)
        if self._pick(route).h2c:
            name = f"{route.namespace}/{route.name}"
            raise Refusal(505, "h2c_only", f"{name} speaks HTTP/2 with prior knowledge only: its port is named h2c")

    @property
    def deadline(self) -> float:
        """When the answer must have begun; where it is not known whose it is, when the request must be whole."""
        return self._deadline or self.arrived + self._context.settings.head_timeout

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

    def _set_deadline(self, at: float) -> None:
        self._client.set_deadline(at)

    def _wanted(self) -> bool:
        if self._client.gone():
            self._end(HANGUP)
            self._client.vanish()
            return False
        return True

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
                # Else each further try might meet another connection of the same dead replica.
                self._context.pools.drop(slot.address)
                self._gate.release(slot)
            self._again("closed the connection without an answer")
        else:
            self.upstream_failed("its connection closed without an answer")

    def upload_blocked(self, blocked: bool) -> None:
        """The replica does not take (or takes again) what we send."""
        self._client.block_upload(blocked)

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
        late = self._late()
        if late is not None:
            self._refuse(late)
        elif self.tunnel:
            self.cut(f"nothing passed between client and revision {self._key} for the idle limit")
        elif self._status:
            how = "was not done in time" if now >= self._deadline else "paused for longer than its idle limit"
            self.cut(f"the answer of revision {self._key} {how}")
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

    def _begun(self) -> None:
        self._body_buffer = []

    def _end(self, code_class: str) -> None:
        if self._count(code_class):
            self._body_buffer = []
            self._buffered = 0
