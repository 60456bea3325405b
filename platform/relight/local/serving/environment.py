"""A container's environment: its own values, and those that come from ConfigMaps and Secrets."""

from __future__ import annotations

import base64
from typing import Any

from relight.base.errors import BadInput
from relight.local.kube import kinds
from relight.local.kube.store import ObjectStore

Object = dict[str, Any]


def values(store: ObjectStore, namespace: str, container: Object) -> dict[str, str]:
    """All of it. BadInput names what it asks for and is not there."""
    found: dict[str, str] = {}
    for part in container.get("envFrom") or ():
        for kind, field in ((kinds.CONFIG_MAP, "configMapRef"), (kinds.SECRET, "secretRef")):
            if field in part:
                data = _data(store, kind, namespace, part[field])
                found |= {str(part.get("prefix", "")) + name: value for name, value in data.items()}
    for variable in container.get("env") or ():
        origin = variable.get("valueFrom") or {}
        for kind, field in ((kinds.CONFIG_MAP, "configMapKeyRef"), (kinds.SECRET, "secretKeyRef")):
            if field in origin:
                data, name = _data(store, kind, namespace, origin[field]), origin[field].get("key", "")
                if name in data:
                    found[variable["name"]] = data[name]
                elif not origin[field].get("optional"):
                    raise BadInput(
                        f'env {variable["name"]}: {kind.kind} "{origin[field].get("name")}" has no key {name!r}'
                    )
        if not origin:
            found[variable["name"]] = str(variable.get("value") or "")
    return found


def _data(store: ObjectStore, kind: kinds.Kind, namespace: str, reference: Object) -> dict[str, str]:
    found = store.get(kind, namespace, str(reference.get("name")))
    if found is None:
        if reference.get("optional"):
            return {}
        raise BadInput(f'{kind.kind} "{reference.get("name")}" not found in namespace {namespace}')
    data = {str(name): str(value) for name, value in (found.get("data") or {}).items()}
    if kind is kinds.SECRET:
        data = {name: base64.b64decode(value).decode() for name, value in data.items()}
    return data
