"""What a function answers, by path: pure routing from a request to a response, or to what to wait for."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from relight.base.errors import NotAllowed, NotFound, RelightError, Unsupported
from relight.runtime.answers import events, health, openai, repository, v2
from relight.runtime.pending import Waiting
from relight.wire import compression
from relight.wire import openai as openai_wire
from relight.wire import v2 as v2_wire
from relight.wire.http import Request, Response

if TYPE_CHECKING:
    from relight.runtime.engine import Engine

Handler = Callable[["Engine", Request, Mapping[str, str]], Response | Waiting]

_MODEL = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?"
_ROUTES: tuple[tuple[re.Pattern[str], Mapping[str, Handler]], ...] = tuple(
    (re.compile(pattern), methods)
    for pattern, methods in (
        (_MODEL + "/infer", {"POST": v2.infer}),
        ("/v1/embeddings", {"POST": openai.embeddings}),
        ("/", {"POST": events.receive}),
        ("/v2/?", {"GET": v2.server}),
        ("/v2/health/live", {"GET": v2.live}),
        ("/v2/health/ready", {"GET": v2.ready}),
        ("/v2/models", {"GET": v2.models}),
        ("/v2/models/stats", {"GET": v2.statistics}),
        (_MODEL, {"GET": v2.metadata}),
        (_MODEL + "/stats", {"GET": v2.statistics}),
        (_MODEL + "/ready", {"GET": v2.model_ready}),
        (_MODEL + "/config", {"GET": v2.configuration}),
        ("/v2/repository/index", {"POST": repository.index}),
        ("/v2/repository/models/(?P<model>[^/]+)/load", {"POST": repository.load}),
        ("/v2/repository/models/(?P<model>[^/]+)/unload", {"POST": repository.unload}),
        ("/v1/models", {"GET": openai.models}),
        ("/v1/models/(?P<model>.+)", {"GET": openai.model}),
        ("/metrics", {"GET": health.metrics}),
    )
)
# func's middleware answers these two for any method, and so do all hosts.
_HEALTH: Mapping[str, Handler] = {"/health/liveness": health.liveness, "/health/readiness": health.readiness}


class _Match(NamedTuple):
    methods: Mapping[str, Handler]
    parameters: Mapping[str, str]


@lru_cache(maxsize=256)
def _match(path: str) -> _Match | None:
    for pattern, methods in _ROUTES:
        match = pattern.fullmatch(path)
        if match:
            return _Match(methods, {key: value for key, value in match.groupdict().items() if value is not None})
    return None


def uncounted(path: str) -> bool:
    """Whether requests to a path are left out of the metrics: those that watch, and do no work."""
    return path in _HEALTH or path == "/metrics"


def answer(engine: Engine, request: Request) -> Response | Waiting:
    """The response, or what to wait for. Raises the errors that ``failure`` renders."""
    health_handler = _HEALTH.get(request.path)
    if health_handler is not None:
        return health_handler(engine, request, {})
    match = _match(request.path)
    if match is None:
        raise NotFound(f"nothing is served at {request.path[:200]!r}")
    method = "GET" if request.method == "HEAD" else request.method
    handler = match.methods.get(method)
    if handler is not None:
        return handler(engine, _unpacked(request, engine.settings.max_body), match.parameters)
    if method == "OPTIONS":
        return Response(204, (("allow", _allowed(match)),))
    raise NotAllowed(f"{request.method} is not served at {request.path[:200]!r}, only {_allowed(match)}")


def _unpacked(request: Request, limit: int) -> Request:
    """The request with its body as it was before a content coding packed it."""
    coding = request.headers.get("content-encoding")
    if coding is None or request.form is not None:
        return request
    if len(request.headers.getall("content-encoding")) > 1:
        raise Unsupported("a body in more than one content coding is not understood")
    return msgspec.structs.replace(request, body=compression.decompress(coding, request.body, limit))


def _allowed(match: _Match) -> str:
    methods = [*match.methods, "OPTIONS"]
    return ", ".join(["GET", "HEAD", *methods[1:]] if methods[0] == "GET" else methods)


def failure(request: Request, error: RelightError) -> Response:
    """An error as the path's protocol writes it, with Retry-After and Allow where they belong."""
    if request.form is not None:
        return request.form.failure(error)
    openai_path = request.path.startswith("/v1/")
    body = openai_wire.error_body(error) if openai_path else v2_wire.error_body(error)
    headers = [("content-type", v2_wire.JSON)]
    if error.retry_after is not None:
        headers.append(("retry-after", str(max(1, math.ceil(error.retry_after)))))
    if isinstance(error, NotAllowed):
        match = _match(request.path)
        if match is not None:
            headers.append(("allow", _allowed(match)))
    return Response(error.status, tuple(headers), body)


def completed(request: Request, response: Response) -> Response:
    """What every answer gets: the caller's request id, and for HEAD the headers alone."""
    request_id = request.headers.get("x-request-id")
    if request_id is not None:
        response = response.with_headers(("x-request-id", request_id))
    if request.method == "HEAD":
        length = ("content-length", str(len(response.body)))
        response = Response(response.status, (*response.headers, length), b"")
    return response
