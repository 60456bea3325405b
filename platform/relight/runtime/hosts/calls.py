"""The calls of ``inference.GRPCInferenceService``: each as the request that asks the same over HTTP, and its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from relight.base.errors import PlatformError
from relight.wire import grpcstatus, modelconfig_text
from relight.wire.http import Request, Response
from relight.wire.v2grpc import GrpcForm, message_of, parameters_of
from relight.wire.v2messages import INFERENCE

SERVICE = "inference.GRPCInferenceService"


class Refused(Exception):
    """The call ends with a status other than OK."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True)
class Method:
    """One call. ``request`` is the class of its message; ``response`` the name of its answer's."""

    request: Any
    response: str
    route: Callable[[Any], Request]
    listed: str | None = None
    """Where HTTP answers with a bare array: the field of the message that holds it."""
    refused_is_unready: bool = False
    """Whether UNAVAILABLE is an answer, ``ready: false``, and no failure."""

    written: Callable[[Any], bytes] | None = None
    """The answer's message, serialized, from what HTTP answers; None where its fields have the same names there."""

    def read(self, response: Response) -> bytes:
        """The answer's message, serialized, from what HTTP would answer."""
        if response.headers and dict(response.headers).get("content-type") == "application/grpc":
            return response.body
        body = orjson.loads(response.body)
        if self.written is not None:
            return self.written(body)
        return bytes(message_of(self.response, {self.listed: body} if self.listed else body).SerializeToString())

    def failed(self, status: int, message: str) -> bytes:
        """Raises Refused, unless the failure is what was asked about."""
        if self.refused_is_unready and status == grpcstatus.UNAVAILABLE:
            return bytes(message_of(self.response, {"ready": False}).SerializeToString())
        raise Refused(status, message)


def _method(name: str, route: Callable[[Any], Request], **more: Any) -> Method:
    return Method(INFERENCE[f"{name}Request"], f"{name}Response", route, **more)


def _get(path: str) -> Callable[[Any], Request]:
    return lambda message: Request("GET", path)


def _model(name: str, version: str = "") -> str:
    if not name:
        raise Refused(grpcstatus.INVALID_ARGUMENT, "the model's name is missing")
    if "/" in name or "/" in version:
        raise Refused(grpcstatus.NOT_FOUND, f"there is no model {f'{name}/{version}'[:80]!r} here")
    return f"/v2/models/{name}/versions/{version}" if version else f"/v2/models/{name}"


def _infer(message: Any) -> Request:
    path = _model(message.model_name, message.model_version)
    return Request("POST", f"{path}/infer", form=GrpcForm(message))


def _statistics(message: Any) -> Request:
    path = _model(message.name, message.version) if message.name else "/v2/models"
    return Request("GET", f"{path}/stats")


def _index(message: Any) -> Request:
    _one_repository(message.repository_name)
    return Request("POST", "/v2/repository/index", body=orjson.dumps({"ready": message.ready}))


def _change(verb: str) -> Callable[[Any], Request]:
    def route(message: Any) -> Request:
        _one_repository(message.repository_name)
        path = f"{_model(message.model_name).replace('/v2/', '/v2/repository/', 1)}/{verb}"
        values = parameters_of(message.parameters)
        if any(isinstance(value, bytes) for value in values.values()):
            raise Refused(grpcstatus.INVALID_ARGUMENT, "files are not taken with a call; push them to the repository")
        return Request("POST", path, body=orjson.dumps({"parameters": values}))

    return route


def _configuration(body: Any) -> bytes:
    """A ModelConfigResponse: one field, of a message whose schema is Triton's own and no part of these."""
    try:
        config = modelconfig_text.to_message(body)
    except PlatformError as error:
        raise Refused(grpcstatus.UNIMPLEMENTED, error.message) from None
    return b"".join((_CONFIG_FIELD, _varint(len(config)), config))


_CONFIG_FIELD = b"\x0a"
"""Field 1, of bytes whose number follows."""


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _one_repository(name: str) -> None:
    if name:
        raise Refused(grpcstatus.NOT_FOUND, f"there is no repository {name[:80]!r}; the one there is has no name")


METHODS = {
    "ServerLive": _method("ServerLive", _get("/v2/health/live")),
    "ServerReady": _method("ServerReady", _get("/v2/health/ready")),
    "ServerMetadata": _method("ServerMetadata", _get("/v2")),
    "ModelReady": _method(
        "ModelReady",
        lambda message: Request("GET", f"{_model(message.name, message.version)}/ready"),
        refused_is_unready=True,
    ),
    "ModelMetadata": _method("ModelMetadata", lambda message: Request("GET", _model(message.name, message.version))),
    "ModelConfig": _method(
        "ModelConfig",
        lambda message: Request("GET", f"{_model(message.name, message.version)}/config"),
        written=_configuration,
    ),
    "ModelInfer": _method("ModelInfer", _infer),
    "ModelStatistics": _method("ModelStatistics", _statistics),
    "RepositoryIndex": _method("RepositoryIndex", _index, listed="models"),
    "RepositoryModelLoad": _method("RepositoryModelLoad", _change("load")),
    "RepositoryModelUnload": _method("RepositoryModelUnload", _change("unload")),
}
