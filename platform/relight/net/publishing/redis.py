"""Events into a Redis stream: one entry per event, a field per attribute, and the data as it is in ``data``."""

from __future__ import annotations

import ssl
from typing import Any

from relight.net.publishing.publisher import TIMEOUT, Link, missing
from relight.wire.cloudevents import Event, text_of


class RedisLink(Link):
    """``options`` as redis-py's ``from_url`` takes them (password, TLS)."""

    def __init__(self, address: str, stream: str, options: dict[str, Any] | None = None) -> None:
        self._address = address
        self._stream = stream
        self._options = options or {}
        self._redis: Any = None

    async def open(self) -> None:
        self._redis = connect(self._address, **self._options)
        await self._redis.ping()

    async def send(self, event: Event) -> None:
        fields: dict[str, str | bytes] = {"specversion": "1.0", "id": event.id, "source": event.source}
        fields["type"] = event.type
        fields |= {name: text_of(value) for name, value in event.attributes.items()}
        fields["data"] = event.data or b""
        await self._redis.xadd(self._stream, fields)

    async def close(self) -> None:
        if self._redis is not None:
            await self._redis.aclose()


def connect(address: str, *, timeout: float = TIMEOUT, **options: Any) -> Any:
    """A client of redis-py for an address; it connects with its first command."""
    try:
        from redis import asyncio as client
    except ImportError:
        raise missing("redis") from None
    return client.Redis.from_url(address, protocol=2, socket_connect_timeout=timeout, socket_timeout=timeout, **options)


def tls_options(ca: str | None, verify: bool) -> dict[str, Any]:
    """What redis-py needs for ``rediss://``: a CA as PEM, and whether to check the server's name and certificate."""
    return {
        "ssl_cert_reqs": ssl.CERT_REQUIRED if verify else ssl.CERT_NONE,
        "ssl_check_hostname": verify,
        "ssl_ca_data": ca,
    }
