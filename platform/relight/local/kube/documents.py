"""What the API tells about itself: health, version, discovery, OpenAPI. Everything that is no resource."""

from __future__ import annotations

from typing import Any

import orjson

from relight.local.kube import discovery, openapi
from relight.local.kube.handling import Answer, as_json

_TEXT = (("Content-Type", "text/plain; charset=utf-8"), ("X-Content-Type-Options", "nosniff"))
_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_PROTOBUF = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"

NOT_FOUND = Answer(404, b"404 page not found\n", _TEXT)
"""The answer to a path that is nothing here: plain text, as the API server's."""


def answer(path: str, accept: str) -> Answer:
    """The document at a path."""
    parts = path.strip("/").split("/")
    if path in ("/healthz", "/livez", "/readyz"):
        return Answer(200, b"ok", _TEXT)
    if len(parts) == 1 and parts[0] in ("api", "apis") and _wants_aggregated(accept):
        body = orjson.dumps(discovery.aggregated(core=parts[0] == "api"))
        return Answer(200, body, (("Content-Type", _AGGREGATED),))
    if parts == ["openapi", "v2"] and _PROTOBUF in accept:
        # kubectl asks here for a kind that version 3 does not have, and then says that there is none. Of no bytes is
        # the message without definitions.
        return Answer(200, b"", (("Content-Type", _PROTOBUF.replace("@", ".")),))
    if parts[:2] == ["openapi", "v3"] and len(parts) > 2:
        document = _openapi(parts[2:])
        return NOT_FOUND if document is None else Answer(200, document)
    found = _discovered(parts)
    return NOT_FOUND if found is None else as_json(200, found)


def _discovered(parts: list[str]) -> dict[str, Any] | None:
    match parts:
        case ["version"]:
            return discovery.VERSION
        case ["openapi", "v3"]:
            return openapi.index()
        case ["api"]:
            return discovery.core_versions()
        case ["api", version]:
            return discovery.resource_list("", version)
        case ["apis"]:
            return discovery.group_list()
        case ["apis", group]:
            return discovery.group(group)
        case ["apis", group, version]:
            return discovery.resource_list(group, version)
    return None


def _openapi(parts: list[str]) -> bytes | None:
    match parts:
        case ["api", version]:
            return openapi.document("", version)
        case ["apis", group, version]:
            return openapi.document(group, version)
    return None


def _wants_aggregated(accept: str) -> bool:
    wanted = set(_AGGREGATED.split(";"))
    return any(wanted <= {part.strip() for part in offer.split(";")} for offer in accept.split(","))
