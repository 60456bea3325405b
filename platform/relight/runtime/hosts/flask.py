"""A function mounted in a Flask application, under gunicorn's ``gthread`` worker or another threaded WSGI server."""

from __future__ import annotations

import atexit
import os
import threading
from typing import Any

from flask import Blueprint, Flask, request
from flask import Response as FlaskResponse

from relight.base.errors import Deadline, TooLarge
from relight.runtime import endpoints
from relight.runtime.engine import Engine
from relight.runtime.function import Function
from relight.runtime.pending import Pending
from relight.wire.http import Headers, Request, Response

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
WAIT = 600.0
"""Seconds that a thread waits for an answer: Knative's longest timeout; whoever called is gone by then."""


class _Mounted:
    """Starts the function at its first request: by then the process is a worker, and not the arbiter that forks it."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._engine: Engine | None = None
        self._lock = threading.Lock()

    @property
    def engine(self) -> Engine:
        with self._lock:
            if self._engine is None:
                self._engine = self._function.http_engine(os.environ)
                self._engine.start()
                atexit.register(self._engine.stop)
            return self._engine

    def serve(self, path: str = "") -> FlaskResponse:
        engine = self.engine
        asked = Request(
            request.method,
            "/" + path,
            Headers((name, value) for name, value in request.headers.items()),
            query=request.query_string.decode("latin-1"),
        )
        limit = engine.settings.max_body
        body = _body(limit)
        if body is None:
            return _rendered(endpoints.failure(asked, TooLarge(f"the body is over {limit} bytes")))
        answer = engine.dispatch(Request(asked.method, asked.path, asked.headers, body, asked.query))
        return _rendered(_waited(asked, answer) if isinstance(answer, Pending) else answer)


def _body(limit: int) -> bytes | None:
    """The request's body; None where it is over the limit. Flask's own limit cuts a chunked body off in silence."""
    if (request.content_length or 0) > limit:
        return None
    parts, size = [], 0
    while part := request.stream.read(min(65536, limit + 1 - size)):
        parts.append(part)
        size += len(part)
        if size > limit:
            return None
    return b"".join(parts)


def _waited(asked: Request, pending: Pending) -> Response:
    done = threading.Event()
    pending.future.add_done_callback(lambda _: done.set())
    if done.wait(WAIT):
        return pending.respond()
    pending.abandon()
    return endpoints.failure(asked, Deadline(f"no answer within {WAIT:.0f} s"))


def _rendered(response: Response) -> FlaskResponse:
    rendered = FlaskResponse(response.body, response.status)
    del rendered.headers["content-type"]
    for name, value in response.headers:
        rendered.headers[name] = value
    return rendered


def mount(function: Function, app: Flask, url_prefix: str = "") -> None:
    """Serve a function's paths below ``url_prefix``. Routes of the application itself go first."""
    mounted = _Mounted(function)
    blueprint = Blueprint(f"relight-{url_prefix.strip('/').replace('/', '-') or 'root'}", __name__)
    options: dict[str, Any] = {"methods": METHODS, "provide_automatic_options": False}
    blueprint.add_url_rule("/", "root", mounted.serve, **options)
    blueprint.add_url_rule("/<path:path>", "path", mounted.serve, **options)
    app.register_blueprint(blueprint, url_prefix=url_prefix or None)
