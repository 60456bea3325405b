"""One attempt to hand an event to an HTTP endpoint, or to a message broker, and what came back."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from relight.base.errors import BadInput, RelightError
from relight.local.eventing.naming import SINK_SCHEME
from relight.wire import cloudevents
from relight.wire.cloudevents import Event
from relight.wire.http import Headers

_PASSED = ("traceparent", "tracestate", "x-request-id")
_PASSED_PREFIXES = ("knative-", "x-b3-")
CONNECT_TIMEOUT = 10.0
"""Seconds to reach a subscriber; how long it may then take is the delivery's timeout."""


def passed_on(headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The HTTP headers that travel with an event through the broker (Knative's list: tracing and ``knative-``)."""
    return tuple((name, value) for name, value in headers if name in _PASSED or name.startswith(_PASSED_PREFIXES))


@dataclass(frozen=True, slots=True)
class Answer:
    """What an endpoint answered; ``status`` None: nothing, for the ``reason``."""

    status: int | None
    headers: Headers = field(default_factory=Headers)
    body: bytes = b""
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


Publish = Callable[[Event], Awaitable[None]]
"""Hands an event to a message broker: returns once that has it; BadInput if it never takes it, else another error."""


class Sender:
    """Sends events. ``limit`` bounds the answer's body in bytes. Open with ``start``, close with ``stop``."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._session: aiohttp.ClientSession | None = None
        self._publishers: dict[str, Publish] = {}

    def publish_to(self, uri: str, publish: Publish | None) -> None:
        """What is sent to a URI of the sinks' own scheme is published; None: there is no such sink any more."""
        if publish is None:
            self._publishers.pop(uri, None)
        else:
            self._publishers[uri] = publish

    async def start(self) -> None:
        if self._session is None:
            # No limit here: the dispatcher bounds what is under way per Trigger.
            connector = aiohttp.TCPConnector(limit=0, resolver=_Resolver(), ttl_dns_cache=10)
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("User-Agent", "Content-Type"),
            )

    async def stop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def send(
        self,
        url: str,
        event: Event,
        headers: Iterable[tuple[str, str]],
        *,
        timeout: float,
        structured: bool = False,
    ) -> Answer:
        """POST an event. Failures to reach the endpoint are answers too (status None); only cancellation raises."""
        if url.startswith(f"{SINK_SCHEME}:"):
            return await self._published(url, event, timeout)
        assert self._session is not None, "started before the first send"
        encode = cloudevents.encode_structured if structured else cloudevents.encode_binary
        fields, body = encode(event)
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=min(timeout, CONNECT_TIMEOUT))
        try:
            async with self._session.post(
                url, data=body, headers=[*fields, *headers], timeout=limits, allow_redirects=False
            ) as response:
                answer = await _read(response.content, self.limit)
                if answer is None:
                    return Answer(413, reason=f"the answer is longer than {self.limit} bytes")
                return Answer(response.status, Headers.from_raw(response.raw_headers), answer)
        except TimeoutError:
            return Answer(None, reason=f"no answer within {timeout:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
            return Answer(None, reason=f"could not be reached: {why}"[:500])

    async def _published(self, uri: str, event: Event, timeout: float) -> Answer:
        """What an endpoint would answer: 202 once the broker has the event."""
        publish = self._publishers.get(uri)
        if publish is None:
            return Answer(None, reason=f"{uri} is not connected to a broker")
        try:
            async with asyncio.timeout(timeout):
                await publish(event)
        except TimeoutError:
            return Answer(None, reason=f"no answer within {timeout:g} s")
        except BadInput as error:
            return Answer(error.status, reason=error.message)
        except RelightError as error:
            return Answer(None, reason=error.message)
        return Answer(202)


async def _read(content: aiohttp.StreamReader, limit: int) -> bytes | None:
    """The body, or None if it is longer than ``limit``."""
    parts, size = [], 0
    async for part in content.iter_any():
        size += len(part)
        if size > limit:
            return None
        parts.append(part)
    return b"".join(parts)


class _Resolver(AbstractResolver):
    """The system's resolver, but ``*.localhost`` is this machine: Python's does not know that (RFC 6761, 6.3)."""

    def __init__(self) -> None:
        self._system = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        if host == "localhost" or host.endswith(".localhost"):
            return [_loopback(host, port)]
        return await self._system.resolve(host, port, family)

    async def close(self) -> None:
        await self._system.close()


def _loopback(host: str, port: int) -> ResolveResult:
    return ResolveResult(
        hostname=host, host="127.0.0.1", port=port, family=socket.AF_INET, proto=0, flags=socket.AI_NUMERICHOST
    )
