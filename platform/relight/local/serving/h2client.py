"""Clients' connections that speak HTTP/2 with prior knowledge: gRPC, above all.

They come to the same port as HTTP/1.1 and are told apart by their first bytes.
"""

from __future__ import annotations

from relight.local.serving.context import Context
from relight.local.serving.h2exchange import H2Exchange
from relight.local.serving.h2link import Link, Sink

SIGN = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""How an HTTP/2 connection begins (RFC 9113, 3.4); no request of HTTP/1.1 does."""

FOREVER = float("inf")


class H2ClientConnection(Link):
    """One connection of a client; each of its streams is an exchange of its own."""

    def __init__(self, context: Context) -> None:
        super().__init__(client_side=False)
        self.deadline = FOREVER
        self.peer = b"unknown"
        self._context = context
        self._exchanges: set[H2Exchange] = set()

    def opened(self) -> None:
        assert self._transport is not None
        peer = self._transport.get_extra_info("peername")
        if peer:
            self.peer = str(peer[0]).encode()
        self._context.connections.add(self)
        self._context.deadlines.watched.add(self)
        self._idle()

    def requested(self, stream_id: int) -> Sink | None:
        exchange = H2Exchange(self._context, self, stream_id, self._context.clock())
        self._exchanges.add(exchange)
        self.deadline = FOREVER
        return exchange

    def forget(self, exchange: H2Exchange) -> None:
        self._exchanges.discard(exchange)

    def settled(self) -> None:
        if not self.streams:
            if self.closing:
                self.close()
            else:
                self._idle()

    def closed(self) -> None:
        context = self._context
        context.connections.discard(self)
        context.deadlines.watched.discard(self)
        if context.all_closed is not None and not context.connections:
            context.all_closed.set()

    # -- ends

    @property
    def busy(self) -> bool:
        return self.streams > 0

    def stop(self) -> None:
        self.go_away()
        self.settled()

    def vanish_now(self) -> None:
        self.abort()

    def buffered(self) -> int:
        return super().buffered() + sum(exchange.buffered for exchange in self._exchanges)

    def eof_received(self) -> bool:
        # A client that closes its side has gone, as with HTTP/1.1.
        return False

    def on_deadline(self, now: float) -> None:
        """Nobody has asked for anything for a while. Clients open another connection when they want one."""
        self.deadline = FOREVER
        if not self.streams:
            self.go_away()
            self.close()

    def _idle(self) -> None:
        self.deadline = at = self._context.clock() + self._context.settings.keep_alive
        if at < self._context.deadlines.next_look:
            self._context.deadlines.arm(at)
