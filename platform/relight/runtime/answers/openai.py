"""The OpenAI API's paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from relight.base.errors import Failed, NotFound
from relight.runtime.answers.timing import server_timing
from relight.runtime.batcher import Computed, Job
from relight.runtime.model import EmbeddingsMap
from relight.runtime.pending import Waiting
from relight.runtime.served import Served
from relight.wire import openai, v2
from relight.wire.http import Request, Response
from relight.wire.openai import EmbeddingsRequest
from relight.wire.tensors import ANY

if TYPE_CHECKING:
    from relight.runtime.engine import Engine

_JSON = (("content-type", v2.JSON),)


def models(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Waiting:
    return Waiting(engine.models.names(), lambda names: Response(200, _JSON, openai.models_body(names)))


def model(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Waiting:
    name = parameters["model"]
    future = engine.models.ready(name, None)
    return Waiting(future, lambda _: Response(200, _JSON, v2.dump(openai.model_body(name))))


def embeddings(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Response | Waiting:
    models = engine.models
    asked = openai.decode_embeddings(request.body)

    def work(served: Served) -> Waiting:
        tensors = served.model.openai_embeddings
        if tensors is None:
            raise NotFound(f"the model {served.name!r} makes no embeddings")
        return _embed(served, tensors, asked)

    return engine.elsewhere(asked.model, request, lambda: models.use(asked.model, None, work))


def _embed(served: Served, tensors: EmbeddingsMap, asked: EmbeddingsRequest) -> Waiting:
    for spec in served.model.outputs:
        if spec.name == tensors.output and spec.shape[-1] != ANY:
            openai.check_dimensions(asked, spec.shape[-1])
    texts = np.empty(len(asked.texts), dtype=object)
    texts[:] = [text.encode() for text in asked.texts]

    def finish(computed: Computed) -> Response:
        vectors = computed.outputs[tensors.output]
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise Failed(f"the model returned {tensors.output!r} as {list(vectors.shape)} for {len(texts)} texts")
        openai.check_dimensions(asked, vectors.shape[1])
        tokens = int(np.sum(computed.outputs[tensors.tokens])) if tensors.tokens else 0
        return Response(200, (*_JSON, server_timing(computed)), openai.encode_embeddings(asked, vectors, tokens))

    return Waiting(served.submit(Job({tensors.input: texts})), finish)
