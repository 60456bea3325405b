"""Events to a NATS subject that a JetStream stream keeps, by CloudEvents' NATS binding.

The message's id lets JetStream drop what is published twice within its window (two minutes unless the stream says
otherwise): an event that a crash has sent again is there once.
"""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass, field
from typing import Any

from relight.base.errors import TooLarge
from relight.net.publishing.publisher import TIMEOUT, Link, missing
from relight.wire import cloudevents
from relight.wire.cloudevents import Event


@dataclass(frozen=True)
class Nats:
    """How to reach a server. ``options``: as nats-py's ``connect`` takes them (user, password, token)."""

    url: str
    options: dict[str, Any] = field(default_factory=dict)
    ca: str | None = None
    """A CA as PEM; None: the system's."""

    async def connect(self) -> Any:
        """A connection that is not mended by itself: whoever uses it makes a new one."""
        try:
            import nats
        except ImportError:
            raise missing("nats-py") from None
        options = dict(self.options)
        if self.ca is not None:
            options["tls"] = ssl.create_default_context(cadata=self.ca)
        return await nats.connect(
            self.url, connect_timeout=int(TIMEOUT), allow_reconnect=False, error_cb=_quiet, **options
        )


async def _quiet(error: Exception) -> None:
    """Errors are raised where they matter."""


class NatsLink(Link):
    def __init__(self, nats: Nats, subject: str) -> None:
        self._nats = nats
        self._subject = subject
        self._connection: Any = None
        self._stream: Any = None

    async def open(self) -> None:
        self._connection = await self._nats.connect()
        self._stream = self._connection.jetstream(timeout=TIMEOUT)

    async def send(self, event: Event) -> None:
        headers, body = cloudevents.encode_binary(event)
        if len(body) > self._connection.max_payload:
            raise TooLarge(f"the NATS server takes at most {self._connection.max_payload} bytes, not {len(body)}")
        known = hashlib.blake2b(f"{event.source}\0{event.id}\0{event.digest()}".encode(), digest_size=16).hexdigest()
        await self._stream.publish(self._subject, body, headers={**dict(headers), "Nats-Msg-Id": known})

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
