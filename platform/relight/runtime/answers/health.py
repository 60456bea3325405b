"""Health and metrics. Bodies and statuses are those of func's middleware, which answers these paths itself there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from relight.runtime.metrics import CONTENT_TYPE
from relight.wire.http import Request, Response

if TYPE_CHECKING:
    from relight.runtime.engine import Engine


def _told(state: tuple[bool, str]) -> Response:
    good, text = state
    return Response(200 if good else 500, (("content-type", "text/plain"),), text.encode())


def liveness(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Response:
    return _told(engine.alive())


def readiness(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Response:
    return _told(engine.ready())


def metrics(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Response:
    return Response(200, (("content-type", CONTENT_TYPE),), engine.metrics.render())
