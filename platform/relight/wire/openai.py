"""The OpenAI API: embeddings, the list of models, and its error object.

Read strictly: what cannot be honoured (token arrays, another number of dimensions) is refused with the name of the
parameter, in the error object that the official clients parse.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from relight.base.errors import BadInput, NotFound, Problem, RelightError
from relight.wire.tensors import Array
from relight.wire.v2 import dump, parse

MAX_TEXTS = 2048
"""Texts in one request, as the OpenAI API has it."""


@dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    """Texts to embed. ``dimensions`` None: as many as the model has."""

    model: str
    texts: tuple[str, ...]
    encoding: Literal["float", "base64"] = "float"
    dimensions: int | None = None


def decode_embeddings(body: bytes) -> EmbeddingsRequest:
    """Read a request for embeddings; BadInput names every parameter that is wrong."""
    fields = parse(body)
    if not isinstance(fields, dict):
        raise BadInput("the body is not a JSON object")
    problems: list[Problem] = []
    model = fields.get("model")
    if not isinstance(model, str) or not model:
        problems.append(Problem("model", "expected the name of a model"))
    encoding: Any = fields.get("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        problems.append(Problem("encoding_format", f"expected float or base64, got {str(encoding)[:40]!r}"))
    dimensions = fields.get("dimensions")
    if isinstance(dimensions, bool) or not isinstance(dimensions, int | None) or (dimensions or 1) < 1:
        problems.append(Problem("dimensions", "expected a positive number"))
    texts = _texts(fields.get("input"), problems)
    if problems:
        raise BadInput.of(problems)
    return EmbeddingsRequest(str(model), texts, encoding, dimensions)


def _texts(value: Any, problems: list[Problem]) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts:
        problems.append(Problem("input", "expected a text or a non-empty array of texts"))
        return ()
    if len(texts) > MAX_TEXTS:
        problems.append(Problem("input", f"{len(texts)} texts; at most {MAX_TEXTS} are taken in one request"))
        return ()
    if all(isinstance(item, int | list) for item in texts):
        problems.append(Problem("input", "arrays of tokens are not taken; send text"))
        return ()
    for index, text in enumerate(texts):
        path = "input" if isinstance(value, str) else f"input[{index}]"
        if not isinstance(text, str):
            problems.append(Problem(path, "expected a text"))
        elif not text:
            problems.append(Problem(path, "the text is empty"))
    return tuple(texts)


def check_dimensions(request: EmbeddingsRequest, have: int) -> None:
    """BadInput where other dimensions were asked for than the model has: they are not cut off in silence."""
    if request.dimensions is not None and request.dimensions != have:
        message = f"the model {request.model!r} has {have} dimensions, not {request.dimensions}"
        raise BadInput.of([Problem("dimensions", message)])


def encode_embeddings(request: EmbeddingsRequest, embeddings: Array, tokens: int) -> bytes:
    """The answer: one row per text, as numbers or as base64 of little-endian floats."""
    rows = np.ascontiguousarray(embeddings, dtype="<f4")
    encoded = [base64.b64encode(row.tobytes()).decode() for row in rows] if request.encoding == "base64" else list(rows)
    return dump(
        {
            "object": "list",
            "data": [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(encoded)],
            "model": request.model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
    )


def models_body(names: Sequence[str]) -> bytes:
    """The list of models. ``created`` is 0: when a model was made is not known here."""
    return dump({"object": "list", "data": [model_body(name) for name in names]})


def model_body(name: str) -> dict[str, Any]:
    """One model of the list."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "relight"}


def error_body(error: RelightError) -> bytes:
    """The error object. ``type`` tells whose fault it is; ``param`` names the parameter where one is at fault."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    code = "model_not_found" if isinstance(error, NotFound) and error.param == "model" else error.code
    return dump({"error": {"message": error.message, "type": kind, "param": error.param, "code": code}})
