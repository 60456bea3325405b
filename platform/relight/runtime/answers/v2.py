"""The Open Inference Protocol's paths."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from relight.base.errors import NotFound
from relight.runtime.answers.timing import server_timing
from relight.runtime.batcher import Computed, Job
from relight.runtime.pending import Waiting
from relight.runtime.repository import RepositoryModel
from relight.runtime.served import Served
from relight.wire import compression, modelconfig, v2, v2heads
from relight.wire.http import Request, Response

if TYPE_CHECKING:
    from relight.runtime.engine import Engine

_JSON = (("content-type", v2.JSON),)


@cache
def _version() -> str:
    from importlib.metadata import version

    return version("relight")


def _json(body: object, status: int = 200) -> Response:
    return Response(status, _JSON, v2.dump(body))


def server(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Response:
    form = request.form or v2heads.HTTP
    return _json(v2.server_metadata("relight", _version(), form.extensions))


def live(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Response:
    return _json({"live": engine.alive()[0]})


def ready(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Response:
    is_ready = engine.ready()[0]
    return _json({"ready": is_ready}, 200 if is_ready else 503)


def models(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Waiting:
    return Waiting(engine.models.names(), lambda names: _json({"models": names}))


def metadata(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Response | Waiting:
    def work(served: Served) -> Response:
        model = served.model
        body = v2.model_metadata(served.name, served.version, model.platform, model.inputs, model.outputs)
        if isinstance(model, RepositoryModel):
            body["parameters"] = dict(model.placement)
        versions = engine.models.versions(served.name)
        return _json(body | {"versions": versions} if versions else body)

    return engine.models.use(parameters["model"], parameters.get("version"), work)


def configuration(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Response | Waiting:
    """The configuration as it is acted on, what was derived from the file included."""

    def work(served: Served) -> Response:
        if not isinstance(served.model, RepositoryModel):
            raise NotFound(f"model {served.name!r} is a function's own, and has no configuration", param="model")
        return _json(modelconfig.to_json(served.model.config))

    return engine.models.use(parameters["model"], parameters.get("version"), work)


def model_ready(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Waiting:
    name = parameters["model"]
    future = engine.models.ready(name, parameters.get("version"))
    return Waiting(future, lambda _: _json({"name": name, "ready": True}))


def statistics(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Response:
    found = engine.models.statistics(parameters.get("model"), parameters.get("version"))
    return _json({"model_stats": found})


def infer(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Response | Waiting:
    model, version = parameters["model"], parameters.get("version")

    def here() -> Response | Waiting:
        return engine.models.use(model, version, lambda served: computing(served, request))

    return here() if version is not None else engine.elsewhere(model, request, here)


def computing(served: Served, request: Request) -> Waiting:
    """An inference request, handed to a loaded model."""
    model = served.model
    form = request.form or v2heads.HTTP
    batched = model.max_batch_size > 0
    asked = form.decode(request, inputs=model.inputs, outputs=model.outputs, batched=batched)
    if asked.id is None and "x-request-id" in request.headers:
        asked = v2.with_id(asked, request.headers.get("x-request-id"))

    def finish(computed: Computed) -> Response:
        name, version, outputs = served.name, served.version, computed.outputs
        answer = form.encode(name, version, asked, outputs, model.outputs, batched=batched)
        return _packed(request, answer.with_headers(server_timing(computed)))

    return Waiting(served.submit(Job(asked.inputs, asked.parameters)), finish)


def _packed(request: Request, response: Response) -> Response:
    """The answer in the content coding that the caller asks for, where that is worth it."""
    if request.form is not None or not compression.SMALLEST <= len(response.body) <= compression.LARGEST:
        return response
    coding = compression.asked(request.headers.get("accept-encoding"))
    if coding is None:
        return response
    headers = (*response.headers, ("content-encoding", coding), ("vary", "accept-encoding"))
    return Response(response.status, headers, compression.compress(coding, response.body))
