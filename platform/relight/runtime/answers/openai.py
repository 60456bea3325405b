"""The OpenAI API's paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from relight.base.errors import Failed, NotFound
from relight.runtime.answers.timing import server_timing
from relight.runtime.batcher import Computed, Job
from relight.runtime.pending import Waiting
from relight.wire import openai, v2
from relight.wire.http import Request, Response
from relight.wire.tensors import ANY

if TYPE_CHECKING:
    from relight.runtime.engine import Engine

_JSON = (("content-type", v2.JSON),)


def models(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Response:
    return Response(200, _JSON, openai.models_body([engine.model.context.model]))


def model(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Response:
    _known(engine, parameters["model"])
    return Response(200, _JSON, v2.dump(openai.model_body(parameters["model"])))


def _known(engine: Engine, name: str) -> None:
    have = engine.model.context.model
    if name != have:
        raise NotFound(f"there is no model {name!r} here; {have!r} is served", param="model")


def embeddings(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Waiting:
    served = engine.model
    tensors = served.openai_embeddings
    if tensors is None:
        raise NotFound(f"the model {served.context.model!r} makes no embeddings")
    asked = openai.decode_embeddings(request.body)
    _known(engine, asked.model)
    for spec in served.outputs:
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

    return Waiting(engine.batcher.submit(Job({tensors.input: texts})), finish)
