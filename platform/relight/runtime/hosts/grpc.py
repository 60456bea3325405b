"""The gRPC face: ``inference.GRPCInferenceService`` and ``grpc.health.v1.Health`` on one port, by grpcio.

A call becomes a request to the endpoint that answers the same question over HTTP, so that both say the same; only the
form of an inference's tensors differs (``wire.v2grpc``). grpcio cannot serve on a socket that somebody else listens on:
it binds the same port beside it (SO_REUSEPORT), and the first socket stops listening once it serves. In between lie
microseconds, in which nobody knows of the port yet: a replica is announced when it is ready. The first socket keeps the
port for who owns it, such as gunicorn's arbiter, whose next worker does the same again.

Imported only where gRPC is served, and only after a fork: grpcio's threads do not survive one.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from relight.base.tasks import Tasks
from relight.runtime.engine import Engine
from relight.runtime.hosts.calls import METHODS, SERVICE, Method, Refused
from relight.runtime.hosts.server import SETTLE
from relight.runtime.lifecycle import State
from relight.runtime.pending import Pending
from relight.wire import grpcstatus
from relight.wire.http import Headers, Request, Response
from relight.wire.v2grpc import GrpcForm
from relight.wire.v2messages import HEALTH

log = logging.getLogger("relight.grpc")

HEALTH_SERVICE = "grpc.health.v1.Health"
LONGEST_DRAIN = 3600.0
"""Seconds. Longer than any timeout of Knative: who asks for the end of the process has a limit of his own."""
METADATA = 64 * 2**10
"""Bytes of a call's metadata, as of a request's head over HTTP."""
_STATUS = {code.value[0]: code for code in grpc.StatusCode}
_OWN = ("content-type", "grpc-status", "grpc-message", "content-length")


class GrpcServer:
    """Serves an engine over gRPC. ``start``, ``drain``, ``stop``, as the HTTP server."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._loop = asyncio.get_running_loop()
        self._server: Any = None
        self._tasks = Tasks("grpc")
        self._moved = asyncio.Condition()
        self._draining = False

    async def start(self, sockets: Iterable[socket.socket]) -> None:
        """Serve on the ports of these listening sockets, which listen no longer and stay the caller's to close."""
        taken = list(sockets)
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", self.engine.settings.max_body),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", METADATA),
                ("grpc.so_reuseport", 1),
            ]
        )
        self._server.add_generic_rpc_handlers(self._handlers())
        for sock in taken:
            host, port = sock.getsockname()[:2]
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        self.engine.listen(self._heard)
        await self._server.start()
        for sock in taken:
            # Under gunicorn another worker, or the one before this, may have done so already.
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    async def drain(self, timeout: float | None = None) -> bool:
        """Unready, then take nothing new, then wait until all calls are answered. False: time ran out."""
        self.engine.drain()
        await asyncio.sleep(SETTLE)
        self.engine.refuse()
        self._draining = True
        await self._tell()
        limit = LONGEST_DRAIN if timeout is None else timeout
        begun = self._loop.time()
        # From here on new calls get UNAVAILABLE, and clients are told to go elsewhere (GOAWAY).
        await self._server.stop(limit)
        if self._loop.time() - begun < limit:
            return True
        log.warning("drain.timeout: calls were cut off after %g s", limit)
        return False

    async def stop(self) -> None:
        """Cut what is left."""
        if self._server is not None:
            await self._server.stop(None)
        await self._tasks.stop()

    def _handlers(self) -> tuple[Any, ...]:
        unary = grpc.unary_unary_rpc_method_handler
        calls = {name: unary(self._bound(method)) for name, method in METHODS.items()}
        health = {"Check": unary(self._check), "Watch": grpc.unary_stream_rpc_method_handler(self._watch)}
        return (
            grpc.method_handlers_generic_handler(SERVICE, calls),
            grpc.method_handlers_generic_handler(HEALTH_SERVICE, health),
        )

    # Inference.

    def _bound(self, method: Method) -> Any:
        async def call(data: bytes, context: Any) -> bytes:
            try:
                return await self._call(method, data, context)
            except Refused as refused:
                status, told = _STATUS[refused.status], refused.message
            except Exception:
                # grpcio would send its text to the caller.
                log.exception("call.failed: the caller gets INTERNAL without this text")
                status, told = grpc.StatusCode.INTERNAL, "the call could not be answered; the function's log says why"
            await context.abort(status, told)
            raise AssertionError("abort has raised")

        return call

    async def _call(self, method: Method, data: bytes, context: Any) -> bytes:
        try:
            message = method.request.FromString(data)
        except DecodeError:
            raise Refused(grpcstatus.INVALID_ARGUMENT, f"this is no {method.request.DESCRIPTOR.name}") from None
        request = method.route(message)
        request = Request(
            request.method,
            request.path,
            _headers(context),
            request.body,
            form=request.form or GrpcForm(),
        )
        answer = self.engine.dispatch(request)
        response = await self._settled(answer) if isinstance(answer, Pending) else answer
        context.set_trailing_metadata(
            tuple((name, value) for name, value in response.headers if name not in _OWN and value.isascii())
        )
        status = next((value for name, value in response.headers if name == "grpc-status"), None)
        if status is not None:
            return method.failed(int(status), _told(response))
        return method.read(response)

    async def _settled(self, pending: Pending) -> Response:
        """The response; a caller who cancels, or whose deadline passes, takes the job with it that has not begun."""
        done = asyncio.Event()

        def wake(_: Future[Any]) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(done.set)

        pending.future.add_done_callback(wake)
        try:
            await done.wait()
        except asyncio.CancelledError:
            pending.abandon()
            raise
        return pending.respond()

    # Health.

    def _heard(self, state: State, reason: str) -> None:
        # In the thread that moved; the loop may be gone where the process ends during a load.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: self._tasks.spawn(self._tell(), "tell"))

    async def _tell(self) -> None:
        async with self._moved:
            self._moved.notify_all()

    def _health(self, service: str) -> str:
        """The status of a service: of all, of inference, or by the names of Kubernetes' two probes."""
        if service == "liveness":
            return "SERVING" if self.engine.alive()[0] else "NOT_SERVING"
        if service in ("", "readiness", SERVICE):
            return "SERVING" if self.engine.ready()[0] else "NOT_SERVING"
        return "SERVICE_UNKNOWN"

    async def _check(self, data: bytes, context: Any) -> bytes:
        service = await _service(data, context)
        status = self._health(service)
        if status == "SERVICE_UNKNOWN":
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {service[:80]!r}")
        return _health_response(status)

    async def _watch(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        """The status now and after each change, until the process drains."""
        service = await _service(data, context)
        said = None
        while True:
            async with self._moved:
                while (status := self._health(service)) == said and not self._draining:
                    await self._moved.wait()
            if status != said:
                said = status
                yield _health_response(status)
            if self._draining:
                return


async def _service(data: bytes, context: Any) -> str:
    try:
        return str(HEALTH["HealthCheckRequest"].FromString(data).service)
    except DecodeError:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this is no HealthCheckRequest")
        raise AssertionError("abort has raised") from None


def _health_response(status: str) -> bytes:
    return bytes(HEALTH["HealthCheckResponse"](status=status).SerializeToString())


def _headers(context: Any) -> Headers:
    """The call's metadata as header fields; what is binary has no such form."""
    return Headers((name, value) for name, value in context.invocation_metadata() or () if isinstance(value, str))


def _told(response: Response) -> str:
    return next((value for name, value in response.headers if name == "grpc-message"), "")
