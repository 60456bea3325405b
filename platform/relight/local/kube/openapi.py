"""OpenAPI v3 documents, derived from the table of fields: enough for kubectl's apply, explain and validation."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

import orjson

from relight.local.kube.kinds import Kind, groups
from relight.local.kube.schema import Schema, schema

_TYPES: dict[str, dict[str, Any]] = {
    "string": {"type": "string"},
    "integer": {"type": "integer", "format": "int64"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "map": {"type": "object", "additionalProperties": {"type": "string"}},
    "quantities": {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": True}},
    "intstr": {"x-kubernetes-int-or-string": True},
    "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
}
_PATCH_PARAMETERS = [
    {"name": name, "in": "query", "schema": {"type": "boolean" if name == "force" else "string", "uniqueItems": True}}
    for name in ("dryRun", "fieldManager", "fieldValidation", "force")
]


def index() -> dict[str, Any]:
    """``/openapi/v3``: one document per group and version, each with a digest so that clients can cache it."""
    paths = {}
    for group, versions in groups().items():
        for version in versions:
            path = f"apis/{group}/{version}" if group else f"api/{version}"
            digest = hashlib.sha256(document(group, version) or b"").hexdigest().upper()
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
    return {"paths": paths}


@cache
def document(group: str, version: str) -> bytes | None:
    """The document of one group and version as JSON; None for what is not served."""
    kinds = groups().get(group, {}).get(version)
    if kinds is None:
        return None
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for kind in kinds:
        name = f"{'.'.join(reversed(group.split('.'))) if group else 'io.k8s.api.core'}.{version}.{kind.kind}"
        identity = {"group": group, "version": version, "kind": kind.kind}
        whole = schema(kind)
        schemas[name] = {
            **(_open(whole) if whole else _TYPES["any"]),
            "x-kubernetes-group-version-kind": [identity],
        }
        root = f"/apis/{group}/{version}" if group else f"/api/{version}"
        inside = "/namespaces/{namespace}" if kind.namespaced else ""
        paths[f"{root}{inside}/{kind.plural}/{{name}}"] = _operations(kind, name, identity)
    return orjson.dumps(
        {
            "openapi": "3.0.0",
            "info": {"title": "relight local mode", "version": "v1"},
            "paths": paths,
            "components": {"schemas": schemas},
        }
    )


def _operations(kind: Kind, name: str, identity: dict[str, str]) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    answer = {"200": {"description": "OK", "content": content}}
    get = {"responses": answer, "x-kubernetes-action": "get", "x-kubernetes-group-version-kind": identity}
    if kind.treatment == "empty":
        return {"get": get}
    patch = {
        "parameters": _PATCH_PARAMETERS,
        "responses": answer,
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": identity,
    }
    return {"get": get, "patch": patch}


def _open(fields: Schema) -> dict[str, Any]:
    if isinstance(fields, dict):
        return {"type": "object", "properties": {name: _open(inner) for name, inner in fields.items()}}
    if isinstance(fields, list):
        return {"type": "array", "items": _open(fields[0])}
    return _TYPES[fields]
