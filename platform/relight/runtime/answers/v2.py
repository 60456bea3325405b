"""The Open Inference Protocol's paths."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from relight.base.errors import NotFound, NotReady
from relight.runtime.answers.timing import server_timing
from relight.runtime.batcher import Computed, Job
from relight.runtime.model import Model
from relight.runtime.pending import Waiting
from relight.wire import compression, v2
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


def named(engine: Engine, parameters: Mapping[str, str]) -> Model:
    """The model that the path names; NotFound where this process serves another one, or another version."""
    model = engine.model
    context = model.context
    if parameters["model"] != context.model:
        raise NotFound(f"there is no model {parameters['model']!r} here; {context.model!r} is served", param="model")
    version = parameters.get("version")
    if version is not None and version != context.version:
        have = f"version {context.version} is served" if context.version else "it has no versions"
        raise NotFound(f"there is no version {version!r} of model {context.model!r} here; {have}", param="model")
    return model


def server(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Response:
    return _json(v2.server_metadata("relight", _version()))


def live(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Response:
    return _json({"live": engine.alive()[0]})


def ready(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Response:
    is_ready = engine.ready()[0]
    return _json({"ready": is_ready}, 200 if is_ready else 503)


def models(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Response:
    return _json({"models": [engine.model.context.model]})


def metadata(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Response:
    model = named(engine, parameters)
    context = model.context
    return _json(v2.model_metadata(context.model, context.version, model.platform, model.inputs, model.outputs))


def model_ready(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Response:
    model = named(engine, parameters)
    is_ready, reason = engine.ready()
    if not is_ready:
        raise NotReady(f"model {model.context.model!r} is not ready: {reason}", retry_after=1.0)
    return _json({"name": model.context.model, "ready": True})


def index(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Response:
    """The repository as this process has it: one model."""
    context = engine.model.context
    return _json([{"name": context.model, "version": context.version or "", "state": "READY", "reason": ""}])


def load(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Response:
    """The one model is loaded already, or ``named`` says why not."""
    return _json({"name": named(engine, parameters).context.model, "load": True})


def statistics(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Response:
    """Of the model that the path names, or of all."""
    if "model" in parameters:
        named(engine, parameters)
    else:
        engine.model  # noqa: B018  raises where there is none
    return _json(engine.statistics.render(parameters.get("model"), parameters.get("version")))


def infer(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Waiting:
    model = named(engine, parameters)
    form = request.form or v2.HTTP
    batched = model.max_batch_size > 0
    asked = form.decode(request, inputs=model.inputs, outputs=model.outputs, batched=batched)
    if asked.id is None and "x-request-id" in request.headers:
        asked = v2.with_id(asked, request.headers.get("x-request-id"))

    def finish(computed: Computed) -> Response:
        context = model.context
        outputs = computed.outputs
        answer = form.encode(context.model, context.version, asked, outputs, model.outputs, batched=batched)
        return _packed(request, answer.with_headers(server_timing(computed)))

    return Waiting(engine.batcher.submit(Job(asked.inputs, asked.parameters)), finish)


def _packed(request: Request, response: Response) -> Response:
    """The answer in the content coding that the caller asks for, where that is worth it."""
    coding = compression.asked(request.headers.get("accept-encoding"))
    size = len(response.body)
    if coding is None or request.form is not None or not compression.SMALLEST <= size <= compression.LARGEST:
        return response
    headers = (*response.headers, ("content-encoding", coding), ("vary", "accept-encoding"))
    return Response(response.status, headers, compression.compress(coding, response.body))
