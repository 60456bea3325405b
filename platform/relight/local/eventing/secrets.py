"""What objects ask of Secrets."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Protocol

from relight.base.errors import BadInput, Problem
from relight.local.kube import kinds
from relight.local.kube.store import ObjectStore


class Secrets(Protocol):
    """Looks a value up, by Secret and key."""

    def __call__(self, name: str, key: str, *, namespace: str | None = None) -> str:
        """BadInput where there is no such Secret, or no such key in it."""
        ...


class StoredSecrets:
    """The Secrets of a namespace, as the store holds them now."""

    def __init__(self, store: ObjectStore, namespace: str) -> None:
        self._store = store
        self._namespace = namespace

    def __call__(self, name: str, key: str, *, namespace: str | None = None) -> str:
        where = namespace or self._namespace
        found = self._store.get(kinds.SECRET, where, name)
        encoded = ((found or {}).get("data") or {}).get(key)
        if encoded is None:
            raise BadInput.of([Problem("spec", f"there is no Secret {where}/{name} with the key {key!r}")])
        return base64.b64decode(encoded).decode("utf-8", "replace").strip()


def referred(secrets: Secrets, field: Mapping[str, Any] | None, key: str = "") -> str | None:
    """The value of ``{secretKeyRef: {name, key}}``; None where none is asked for."""
    reference = (field or {}).get("secretKeyRef") or {}
    if not reference.get("name"):
        return None
    return secrets(str(reference["name"]), str(reference.get("key") or key))


def optional(secrets: Secrets, name: str, key: str, default: str = "", *, namespace: str | None = None) -> str:
    """A key that a Secret may leave out."""
    try:
        return secrets(name, key, namespace=namespace)
    except BadInput:
        return default
