"""Strategic-merge patch, for the part of Kubernetes that a Knative Service consists of.

Mappings are merged, ``null`` removes a key, lists replace, except the lists below, whose items are merged by a key as
the API's own patch strategy has it. ``$patch: delete`` in an item removes it, ``$patch: replace`` replaces a mapping
or, as an item of its own, a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "ports": "containerPort",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
    "topologySpreadConstraints": "topologyKey",
    "traffic": "tag",
}
"""Field → the key of its items (k8s.io/api, ``patchMergeKey``; ``traffic`` is ours: a Service's CRD has none)."""


def merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of ``base`` with ``patch`` in it."""
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    merged = dict(base)
    for key, value in patch.items():
        old = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            merged[key] = merge(old if isinstance(old, Mapping) else {}, value)
        elif isinstance(value, Sequence) and not isinstance(value, str) and key in MERGE_KEYS:
            merged[key] = _items(old if isinstance(old, list) else [], value, MERGE_KEYS[key])
        else:
            merged[key] = value
    return merged


def _items(base: Sequence[Any], patch: Sequence[Any], key: str) -> list[Any]:
    if any(isinstance(item, Mapping) and item == {"$patch": "replace"} for item in patch):
        base = []
    merged = list(base)
    for item in patch:
        if not isinstance(item, Mapping):
            merged.append(item)
            continue
        if item == {"$patch": "replace"}:
            continue
        at = next((at for at, old in enumerate(merged) if old.get(key) == item.get(key)), None)
        if item.get("$patch") == "delete":
            if at is not None:
                del merged[at]
        elif at is None:
            merged.append(merge({}, item))
        else:
            merged[at] = merge(merged[at], item)
    return merged
