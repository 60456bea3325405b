"""The door of brokers and channels: ``POST /NAMESPACE/BROKER``. 202 means that the event is on disk, nothing else does.

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
from relight.local.eventing.naming import CHANNELS, Hub
from relight.wire import cloudevents
from relight.wire.cloudevents import Event
from relight.wire.http import Headers

log = logging.getLogger("relight.eventing")

Publish = Callable[[Hub, list[Event], Headers], Awaitable[None]]

MAX_BATCH = 1000
"""Events in one batch at most."""
BODY_TIMEOUT = 30.0
"""Seconds for a body to arrive."""
SHUTDOWN = 5.0
"""Seconds that requests under way get when the listener closes."""
_CHANNEL_PATHS = frozenset(kind.plural for kind in CHANNELS)
_ALLOW = {"Allow": "POST, OPTIONS"}


class Ingress:
    """The listener. ``publish`` stores events or raises; ``limit`` bounds a request's body in bytes.

    ``inspect`` answers what is no event for a hub; ``refused`` is told the status of what was not accepted;
    ``strict``: batches are refused, as on Knative.
    """

    def __init__(
        self,
        publish: Publish,
        limit: int,
        *,
        inspect: Callable[[web.BaseRequest], Awaitable[web.StreamResponse | None]],
        refused: Callable[[int], None],
        strict: bool = False,
    ) -> None:
        self._publish = publish
        self._inspect = inspect
        self._refused = refused
        self._strict = strict
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
            inspected = await self._inspect(request)
            if inspected is not None:
                return inspected
            if request.method == "OPTIONS":
                return web.Response(headers=_ALLOW | {"Webhook-Allowed-Origin": "*", "Webhook-Allowed-Rate": "*"})
            if request.method != "POST":
                raise NotAllowed(f"{request.method} is not allowed; POST an event")
            hub = _hub(request.path)
            body = await self._read(request)
            headers = Headers.from_raw(request.raw_headers)
            await self._publish(hub, self._events(headers, body), headers)
        except RelightError as error:
            more = dict(_ALLOW)
            if error.retry_after is not None:
                more["Retry-After"] = str(math.ceil(error.retry_after))
            # Knative's ingress knows no 415: what is no event of its kinds is 400.
            status = 400 if error.status == 415 else error.status
            self._refused(status)
            return web.Response(status=status, text=error.message + "\n", headers=more)
        return web.Response(status=202, headers=_ALLOW)

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the event is larger than {self._limit} bytes")

    def _events(self, headers: Headers, body: bytes) -> list[Event]:
        """The events of a request: one, or those of a batch, which is accepted as a whole or not at all."""
        if cloudevents.mode(headers) != "batch" or self._strict:
            return [cloudevents.decode(headers, body)]
        events = cloudevents.decode_batch(headers, body)
        if not events:
            raise BadInput("the batch holds no event")
        if len(events) > MAX_BATCH:
            raise TooLarge(f"a batch of {len(events)} events is more than the {MAX_BATCH} that are taken at once")
        return events

    async def _read(self, request: web.BaseRequest) -> bytes:
        if (request.content_length or 0) > self._limit:
            raise self._too_large()
        if request.content.is_eof() and request.content.exception() is None:
            # It came with the head, as nearly always.
            body = request.content.read_nowait()
            if len(body) > self._limit:
                raise self._too_large()
            return body
        parts, size = [], 0
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                async for part in request.content.iter_any():
                    size += len(part)
                    if size > self._limit:
                        raise self._too_large()
                    parts.append(part)
        except TimeoutError as error:
            raise BadInput(f"the body did not arrive within {BODY_TIMEOUT:g} s") from error
        except (BadHttpMessage, HttpProcessingError) as error:
            raise BadInput("the body is not well-formed HTTP") from error
        return b"".join(parts)


def _hub(path: str) -> Hub:
    """The hub that a path addresses: ``/NAMESPACE/BROKER``, or ``/NAMESPACE/channels/NAME``."""
    if path in ("", "/"):
        raise NotFound("events are posted to /NAMESPACE/BROKER")
    parts = path.split("/")[1:]
    if all(parts):
        if len(parts) == 2:
            return parts[0], parts[1]
        if len(parts) == 3 and parts[1] in _CHANNEL_PATHS:
            return parts[0], f"{parts[1]}/{parts[2]}"
    raise BadInput(f"{path!r} is not /NAMESPACE/BROKER"[:200])


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
