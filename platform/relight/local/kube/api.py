"""The Kubernetes API listener of local mode: TLS on loopback, a token, and the verbs on the store.

All work is done on the event loop, one request at a time (the store's calls are short); only watches and logs stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from aiohttp import web
from multidict import CIMultiDict

from relight.base.errors import PlatformError, RelightError
from relight.local.kube import documents, failures, guarding, paths
from relight.local.kube.decoding import MAX_BYTES
from relight.local.kube.failures import Failure
from relight.local.kube.handling import Answer, Call, Handler, LogOptions, PodLogs, as_json
from relight.local.kube.resources import Resources
from relight.local.kube.store import ObjectStore
from relight.net import listener
from relight.net.tls import Pki

__all__ = ["ApiServer", "LogOptions", "PodLogs"]

log = logging.getLogger("relight.kube")

SHUTDOWN_TIMEOUT = 5.0
"""Seconds that plain requests may take to end at stop; streams are ended at once."""


class ApiServer:
    """Serves a store. ``user`` is the name that objects record as their creator."""

    def __init__(self, store: ObjectStore, pki: Pki, *, pod_logs: PodLogs, user: str = "admin") -> None:
        self._pki = pki
        self._resources = Resources(store, user)
        self._handler = Handler(store, self._resources, pod_logs)
        self._token = ""
        self._runner: web.AppRunner | None = None
        self._streams: set[asyncio.Task[object]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen; the answer is the port (for port 0 a free one). PortTaken names a port that is in use."""
        if host not in ("127.0.0.1", "localhost", "::1"):
            raise PlatformError(f"the Kubernetes API listens on loopback only, not on {host}")
        if self._runner is not None:
            raise PlatformError("the Kubernetes API is started already")
        socket = listener.bind(host, port, setting="RELIGHT_API_PORT")
        try:
            self._token = self._pki.token()
            self._resources.ensure_cluster()
            application = web.Application(client_max_size=MAX_BYTES)
            application.router.add_route("*", "/{path:.*}", self._serve)
            runner = web.AppRunner(
                application, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_TIMEOUT
            )
            await runner.setup()
            self._runner = runner
            await web.SockSite(runner, socket, ssl_context=self._pki.server_context()).start()
        except BaseException:
            socket.close()
            await self.stop()
            raise
        bound: int = socket.getsockname()[1]
        return bound

    async def stop(self) -> None:
        """End all streams, let other requests finish, stop listening. Calling again does nothing."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        for site in list(runner.sites):
            await site.stop()
        for task in list(self._streams):
            task.cancel()
        connections = [] if runner.server is None else [handler.transport for handler in runner.server.connections]
        await runner.cleanup()
        for transport in connections:
            if transport is not None:
                transport.abort()  # TLS would wait half a minute for clients that do not say goodbye
        await asyncio.sleep(0)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        try:
            guarding.check(request.path, request.headers, self._token)
            answer = await self._answer(request)
        except Failure as failure:
            answer = self._refusal(failure)
        except web.HTTPRequestEntityTooLarge:
            answer = self._refusal(Failure(413, f"Request entity too large: limit is {MAX_BYTES}"))
        except RelightError as error:
            target = paths.parse(request.rel_url.raw_path)
            kind, name = (target.kind, target.name or "") if target else (None, "")
            answer = self._refusal(failures.of(error, kind, name))
        except Exception:
            log.exception("api.failed method=%s path=%s: answered 500", request.method, request.path)
            answer = self._refusal(Failure(500, "an error on the server prevented the request from succeeding"))
        if isinstance(answer.body, bytes):
            return web.Response(status=answer.status, body=answer.body, headers=_multi(answer))
        return await self._stream(request, answer, answer.body)

    def _refusal(self, failure: Failure) -> Answer:
        answer = as_json(failure.http_status, failure.body())
        return Answer(answer.status, answer.body, (*answer.headers, *failure.headers.items()))

    async def _answer(self, request: web.Request) -> Answer:
        target = paths.parse(request.rel_url.raw_path)
        if target is None:
            readable = request.method in ("GET", "HEAD")
            return (
                documents.answer(request.path, request.headers.get("Accept", "")) if readable else documents.NOT_FOUND
            )
        body = await request.read() if request.can_read_body else b""
        return self._handler.handle(Call(request.method, target, request.query, request.headers, body))

    async def _stream(self, request: web.Request, answer: Answer, chunks: AsyncIterator[bytes]) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        response = web.StreamResponse(status=answer.status, headers=_multi(answer))
        response.enable_chunked_encoding()
        try:
            await response.prepare(request)
            async for chunk in chunks:
                await response.write(chunk)
            await response.write_eof()
        except asyncio.CancelledError:
            if self._runner is not None:
                raise
            await response.write_eof()  # stopping: the client sees an end, not a broken answer
        except RelightError as error:
            log.warning("api.stream-failed path=%s error=%s: the stream ends here", request.path, error)
            await response.write_eof()
        except ConnectionError:
            log.debug("api.client-left path=%s", request.path)
        finally:
            self._streams.discard(task)
            close = getattr(chunks, "aclose", None)
            if close is not None:
                await close()
        return response


def _multi(answer: Answer) -> CIMultiDict[str]:
    return CIMultiDict(answer.headers)
