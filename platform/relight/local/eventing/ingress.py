"""What the door of brokers and channels answers: ``POST /NAMESPACE/BROKER``. 202 means that the event is on disk.

Status codes are those of Knative's broker ingress; where that answers with an empty body, a sentence says why.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage, HttpProcessingError

from relight.base.errors import BadInput, Forbidden, NotAllowed, NotFound, PlatformError, RelightError, TooLarge
from relight.local.eventing.door import TARDY, Door, Post
from relight.local.eventing.naming import CHANNELS, SINKS, Hub
from relight.wire import cloudevents
from relight.wire.cloudevents import Event
from relight.wire.http import Headers, Response

log = logging.getLogger("relight.eventing")

Publish = Callable[[Hub, list[Event], Headers, Callable[[BaseException | None], None]], None]
"""Stores events and calls back once they are on disk, or with the error; raises what is wrong with them."""

MAX_BATCH = 1000
"""Events in one batch at most."""
_PATHS = frozenset(kind.plural for kind in (*CHANNELS, *SINKS))
_ALLOW = (("Allow", "POST, OPTIONS"),)
_TEXT = (("Content-Type", "text/plain; charset=utf-8"),)
_ACCEPTED = Response(202, _ALLOW)


class Ingress:
    """The listener. ``limit`` bounds a request's body in bytes.

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
        self._door: Door | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; the port, which is a free one if 0 was asked for. PortTaken if another program has it."""
        door = Door(self._post, web.Server(self._other, access_log=None), self._limit)
        bound = await door.start(host, port)
        self._door = door
        return bound

    async def stop(self) -> None:
        """Close the door; requests under way are answered. Idempotent."""
        door, self._door = self._door, None
        if door is not None:
            await door.stop()

    def _post(self, post: Post, answered: Callable[[Response], None]) -> None:
        try:
            _check_origin(post.headers)
            hub = _hub(post.path)
            if post.body is None:
                raise TooLarge(f"the event is larger than {self._limit} bytes")
            events = self._events(post.headers, post.body)
            self._publish(hub, events, post.headers, lambda error: answered(self._outcome(error)))
        except RelightError as error:
            answered(self._failure(error))

    def _outcome(self, error: BaseException | None) -> Response:
        if error is None:
            return _ACCEPTED
        if isinstance(error, RelightError):
            return self._failure(error)
        log.error("ingress.failed error=%r", error, exc_info=error)
        return self._failure(PlatformError("the event was not accepted"))

    async def _other(self, request: web.BaseRequest) -> web.StreamResponse:
        """A look inside, a preflight, a mistake; and events on a connection that had one of these before."""
        try:
            _check_origin(Headers.from_raw(request.raw_headers))
            inspected = await self._inspect(request)
            if inspected is not None:
                return inspected
            if request.method == "OPTIONS":
                allowed = {"Webhook-Allowed-Origin": "*", "Webhook-Allowed-Rate": "*"}
                return web.Response(headers=dict(_ALLOW) | allowed)
            if request.method != "POST":
                raise NotAllowed(f"{request.method} is not allowed; POST an event")
            body = await _read(request, self._limit)
            future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
            post = Post(request.path, Headers.from_raw(request.raw_headers), body, True)
            self._post(post, lambda response: None if future.done() else future.set_result(response))
            answer = await future
        except RelightError as error:
            answer = self._failure(error)
        return web.Response(status=answer.status, headers=dict(answer.headers), body=answer.body)

    def _failure(self, error: RelightError) -> Response:
        headers: tuple[tuple[str, str], ...] = (*_ALLOW, *_TEXT)
        if error.retry_after is not None:
            headers = (*headers, ("Retry-After", str(math.ceil(error.retry_after))))
        # Knative's ingress knows no 415: what is no event of its kinds is 400.
        status = 400 if error.status == 415 else error.status
        self._refused(status)
        return Response(status, headers, f"{error.message}\n".encode())

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


async def _read(request: web.BaseRequest, limit: int) -> bytes | None:
    """The body; None where it is longer than ``limit``."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(TARDY):
            async for part in request.content.iter_any():
                size += len(part)
                if size > limit:
                    return None
                parts.append(part)
    except TimeoutError as error:
        raise BadInput(f"the request did not arrive within {TARDY:g} s") from error
    except (BadHttpMessage, HttpProcessingError) as error:
        raise BadInput("the body is not well-formed HTTP") from error
    return b"".join(parts)


def _hub(path: str) -> Hub:
    """The hub that a path addresses: ``/NAMESPACE/BROKER``, or ``/NAMESPACE/KIND/NAME`` of a channel or a sink."""
    if path in ("", "/"):
        raise NotFound("events are posted to /NAMESPACE/BROKER")
    parts = path.split("/")[1:]
    if all(parts):
        if len(parts) == 2:
            return parts[0], parts[1]
        if len(parts) == 3 and parts[1] in _PATHS:
            return parts[0], f"{parts[1]}/{parts[2]}"
    raise BadInput(f"{path!r} is not /NAMESPACE/BROKER"[:200])


def _check_origin(headers: Headers) -> None:
    """Only programs on this machine: a web page elsewhere could point its own name at loopback (DNS rebinding)."""
    host = headers.get("host") or ""
    if not _is_local(host):
        raise Forbidden(f"the Host {host!r} is not this machine"[:200])
    origin = headers.get("origin")
    if origin is not None and not _is_local(origin.partition("://")[2]):
        raise Forbidden(f"the Origin {origin!r} is not this machine"[:200])


def _is_local(authority: str) -> bool:
    name = authority[: authority.find("]") + 1] if authority.startswith("[") else authority.partition(":")[0]
    name = name.lower()
    return name in ("127.0.0.1", "localhost", "[::1]") or name.endswith(".localhost")
