"""Triton's model-repository extension: what there is, load, unload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from relight.base.errors import BadInput, Problem, Unprocessable
from relight.runtime.catalogue import Entry
from relight.runtime.pending import Waiting
from relight.wire import v2
from relight.wire.http import Request, Response

if TYPE_CHECKING:
    from relight.runtime.engine import Engine

_JSON = (("content-type", v2.JSON),)


def _json(body: object) -> Response:
    return Response(200, _JSON, v2.dump(body))


def index(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Waiting:
    """Every model of the repository, loaded or not; with ``ready`` true in the body, those that are."""
    body = _object(request.body)
    only = body.get("ready", False)
    if not isinstance(only, bool):
        raise BadInput.of([Problem("ready", f"expected true or false, got {only!r}")])

    def finish(entries: list[Entry]) -> Response:
        return _json([entry.json() for entry in entries if entry.state == "READY" or not only])

    return Waiting(engine.models.index(), finish)


def load(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Waiting:
    """Load a model, or what has changed of it; answered when that is done."""
    name = parameters["model"]
    given = _parameters(request.body)
    config = given.pop("config", None)
    problems = []
    if config is not None and not isinstance(config, str):
        problems.append(Problem("parameters.config", "expected a text: the configuration in JSON"))
    if files := [key for key in given if key.startswith("file:")]:
        message = "files are not taken by this endpoint; push them to the repository with relight model push"
        raise Unprocessable(f"parameters[{files[0]!r}]: {message}", param="parameters")
    problems += [Problem(f"parameters.{key}", "unknown; expected config") for key in given]
    if problems:
        raise BadInput.of(problems)
    return Waiting(engine.models.load(name, config), lambda _: _json({"name": name, "load": True}))


def unload(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Waiting:
    """Let go of a model once nothing of it is in flight, and keep it so until it is loaded by this API again."""
    name = parameters["model"]
    # There are no ensembles here, so that no model depends on another one.
    unknown = _parameters(request.body).keys() - {"unload_dependents"}
    if unknown:
        expected = "unknown; expected unload_dependents"
        raise BadInput.of([Problem(f"parameters.{key}", expected) for key in sorted(unknown)])
    return Waiting(engine.models.unload(name), lambda _: _json({"name": name, "unload": True}))


def _object(body: bytes) -> dict[str, Any]:
    value = v2.parse(body) if body.strip() else {}
    if not isinstance(value, dict):
        raise BadInput("expected a JSON object, or no body")
    return value


def _parameters(body: bytes) -> dict[str, Any]:
    value = _object(body).get("parameters", {})
    if not isinstance(value, dict):
        raise BadInput.of([Problem("parameters", "expected an object")])
    return dict(value)
