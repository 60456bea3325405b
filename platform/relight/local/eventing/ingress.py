"""The broker's door: ``POST /NAMESPACE/BROKER``. 202 means that the event is on disk, and nothing else does.

Status codes are those of Knative's broker ingress; where that answers with an empty body, a sentence says why.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage, HttpProcessingError

from relight.base.errors import BadInput, Forbidden, NotAllowed, NotFound, PortTaken, RelightError, TooLarge
from relight.wire import cloudevents
from relight.wire.cloudevents import Event
from relight.wire.http import Headers

log = logging.getLogger("relight.eventing")

Publish = Callable[[str, str, Event, Headers], Awaitable[None]]

BODY_TIMEOUT = 30.0
"""Seconds for a body to arrive."""
SHUTDOWN = 5.0
"""Seconds that requests under way get when the listener closes."""
_ALLOW = {"Allow": "POST, OPTIONS"}


class Ingress:
    """The listener. ``publish`` stores an event or raises; ``limit`` bounds a request's body in bytes."""

    def __init__(self, publish: Publish, limit: int) -> None:
        self._publish = publish
        self._limit = limit
        self._runner: web.ServerRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; the port, which is a free one if 0 was asked for. PortTaken if another program has it."""
        runner = web.ServerRunner(web.Server(self._answer, access_log=None), shutdown_timeout=SHUTDOWN)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            await runner.cleanup()
            if error.errno != errno.EADDRINUSE:
                raise
            raise PortTaken(f"port {port} for the broker is taken; set RELIGHT_BROKER_PORT to another, or 0") from error
        self._runner = runner
        return int(runner.addresses[0][1])

    async def stop(self) -> None:
        """Close the door; requests under way are answered. Idempotent."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            _check_origin(request)
            if request.method == "OPTIONS":
                return web.Response(headers=_ALLOW | {"Webhook-Allowed-Origin": "*", "Webhook-Allowed-Rate": "*"})
            if request.method != "POST":
                raise NotAllowed(f"{request.method} is not allowed; POST an event")
            namespace, broker = _broker(request.path)
            body = await self._read(request)
            headers = Headers.from_raw(request.raw_headers)
            await self._publish(namespace, broker, _event(headers, body), headers)
        except RelightError as error:
            more = dict(_ALLOW)
            if error.retry_after is not None:
                more["Retry-After"] = str(math.ceil(error.retry_after))
            # Knative's ingress knows no 415: what is no event of its kinds is 400.
            status = 400 if error.status == 415 else error.status
            return web.Response(status=status, text=error.message + "\n", headers=more)
        return web.Response(status=202, headers=_ALLOW)

    async def _read(self, request: web.BaseRequest) -> bytes:
        too_large = TooLarge(f"the event is larger than {self._limit} bytes")
        if (request.content_length or 0) > self._limit:
            raise too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                async for part in request.content.iter_any():
                    size += len(part)
                    if size > self._limit:
                        raise too_large
                    parts.append(part)
        except TimeoutError as error:
            raise BadInput(f"the body did not arrive within {BODY_TIMEOUT:g} s") from error
        except (BadHttpMessage, HttpProcessingError) as error:
            raise BadInput("the body is not well-formed HTTP") from error
        return b"".join(parts)


def _broker(path: str) -> tuple[str, str]:
    """Namespace and name of the broker that a path addresses."""
    if path in ("", "/"):
        raise NotFound("events are posted to /NAMESPACE/BROKER")
    parts = path.split("/")[1:]
    if len(parts) != 2 or not all(parts):
        raise BadInput(f"{path!r} is not /NAMESPACE/BROKER"[:200])
    return parts[0], parts[1]


def _event(headers: Headers, body: bytes) -> Event:
    if cloudevents.mode(headers) == "batch":
        raise BadInput("batches are not accepted by brokers; send each event by itself")
    return cloudevents.decode(headers, body)


def _check_origin(request: web.BaseRequest) -> None:
    """Only programs on this machine: a web page elsewhere could point its own name at loopback (DNS rebinding)."""
    host = request.headers.get("Host", "")
    if not _is_local(host):
        raise Forbidden(f"the Host {host!r} is not this machine"[:200])
    origin = request.headers.get("Origin")
    if origin is not None and not _is_local(origin.partition("://")[2]):
        raise Forbidden(f"the Origin {origin!r} is not this machine"[:200])


def _is_local(authority: str) -> bool:
    name = authority[: authority.find("]") + 1] if authority.startswith("[") else authority.partition(":")[0]
    name = name.lower()
    return name in ("127.0.0.1", "localhost", "[::1]") or name.endswith(".localhost")
