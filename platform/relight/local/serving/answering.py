"""The answer of one exchange, from a replica's connection to the client's: its head, its framing, its end.

After 101 it is bytes both ways. An answer that cannot be finished is cut in a way that its reader notices; a stream of
events says why before it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relight.base.errors import RelightError
from relight.local.serving.context import Context
from relight.local.serving.http1 import LAST_CHUNK, error_body, render, status_line, without
from relight.local.serving.metrics import CUT
from relight.local.serving.passage import Passage
from relight.local.serving.refusals import Refusal, answer
from relight.wire.http import Response

if TYPE_CHECKING:
    from relight.local.serving.downstream import ClientConnection
    from relight.local.serving.upstream import UpstreamConnection


class Answering(Passage):
    """See the module. ``Exchange`` adds the request."""

    __slots__ = (
        "_client",
        "_close_delimited",
        "_events",
        "_out",
        "_rechunk",
        "_request_id",
        "_reusable",
        "_status",
        "_unframed",
        "_upstream",
        "complete",
        "keep_alive",
        "method",
        "noted",
        "target",
        "tunnel",
        "upgrade",
        "version",
    )

    def __init__(
        self, context: Context, client: ClientConnection, method: bytes, version: str, keep_alive: bool, now: float
    ) -> None:
        super().__init__(context, now)
        self.method = method
        self.version = version
        self.keep_alive = keep_alive
        self.noted: dict[bytes, bytes] = {}
        self.target = b"/"
        self.upgrade = False
        self.complete = False
        """The whole request has been read."""
        self.tunnel = False
        self._client = client
        self._upstream: UpstreamConnection | None = None
        self._status = 0
        self._out: list[bytes] = []
        self._rechunk = False
        self._close_delimited = False
        self._unframed = False
        self._reusable = False
        self._events = False
        self._request_id = b""

    # -- what the request says

    def upstream_failed(self, what: str) -> None:
        """The replica's answer cannot be read."""
        raise NotImplementedError

    def _begun(self) -> None:
        """The answer has begun: the request will not be sent again."""
        raise NotImplementedError

    def _end(self, code_class: str) -> None:
        raise NotImplementedError

    @property
    def openai(self) -> bool:
        return self.target.startswith(b"/v1/")

    # -- the answer, as the replica's connection reads it

    def response_head(self, status: int, lines: list[bytes], noted: dict[bytes, bytes], keep_alive: bool) -> None:
        context, client = self._context, self._client
        limits, slot = self._limits, self._slot
        assert limits is not None
        assert slot is not None
        self._status = status
        self._reusable = keep_alive
        self._begun()
        self._first_answer(slot)
        out = self._out
        out.append(status_line(status))
        connection = noted.get(b"connection")
        out += lines if connection is None else without(lines, connection)
        out.append(b"x-request-id: %b\r\n" % self._request_id)
        if b"content-type" in noted:
            out.append(b"content-type: %b\r\n" % noted[b"content-type"])
        if b"relight-timing" in self.noted:
            out.append(b"server-timing: %b\r\n" % self._timing(slot))
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

    def _drop_upstream(self) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.abort()

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
