"""Sets of fields, as ``metadata.managedFields`` holds them (FieldsV1).

A field is a path of steps: ``f:name`` into an object, ``k:{"name":"a"}`` to an item of a list with a merge key,
``v:"a"`` to an item of a set. Leaves are scalars, empty objects and atomic lists. Most lists are atomic: all of
Knative's are (its definitions declare merge keys only inside containers, themselves an atomic list).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from relight.local.kube.kinds import Kind

Path = tuple[str, ...]
Fields = frozenset[Path]

_ANY = {"ownerReferences": ("uid",)}
_NATIVE = {
    **_ANY,
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "imagePullSecrets": ("name",),
    "conditions": ("type",),
    "ports": ("containerPort", "protocol"),
}
_SETS = ("finalizers",)
_DEFAULTS = {"protocol": "TCP"}


def merge_keys(kind: Kind) -> Mapping[str, tuple[str, ...]]:
    """Field name → keys that identify an item of that list, for lists that are merged by item in this kind."""
    if kind.custom:
        return _ANY
    if kind.plural == "services":
        return {**_NATIVE, "ports": ("port", "protocol")}
    return _NATIVE


def item_key(item: Any, keys: tuple[str, ...]) -> tuple[Any, ...] | None:
    """The values of an item's merge keys; None for an item that has none."""
    if not isinstance(item, dict) or keys[0] not in item:
        return None
    return tuple(item.get(key, _DEFAULTS.get(key)) for key in keys)


def leaves(kind: Kind, obj: Any) -> dict[Path, Any]:
    """Every field of a value with its value. An item of a keyed list is also a field of its own (None)."""
    return dict(_leaves((), "", obj, merge_keys(kind)))


def _leaves(path: Path, name: str, value: Any, keys: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves((*path, f"f:{key}"), key, inner, keys)
    elif isinstance(value, list) and value and name in _SETS:
        for item in value:
            yield (*path, f"v:{json.dumps(item)}"), item
    elif isinstance(value, list) and value and name in keys and all(item_key(item, keys[name]) for item in value):
        for item in value:
            identity = dict(zip(keys[name], item_key(item, keys[name]) or (), strict=True))
            step = (*path, "k:" + json.dumps(identity, separators=(",", ":"), sort_keys=True))
            yield step, None
            yield from _leaves(step, "", item, keys)
    elif path:
        yield path, value


def to_v1(fields: Iterable[Path]) -> dict[str, Any]:
    """The nested form of FieldsV1; ``.`` stands for a field that is in the set and has fields in it as well."""
    root: dict[str, Any] = {}
    for path in sorted(fields, key=len):
        at = root
        for step in path:
            at = at.setdefault(step, {})
        at["."] = {}
    return {step: _compact(inner) for step, inner in root.items()}


def _compact(tree: dict[str, Any]) -> dict[str, Any]:
    if set(tree) == {"."}:
        return {}
    return {step: inner if step == "." else _compact(inner) for step, inner in sorted(tree.items())}


def from_v1(tree: Any, path: Path = ()) -> Fields:
    """The set of a FieldsV1 value; what is not well-formed is left out."""
    if not isinstance(tree, dict):
        return frozenset()
    if not tree:
        return frozenset((path,)) if path else frozenset()
    found: set[Path] = set()
    for step, inner in tree.items():
        found |= {path} if step == "." else from_v1(inner, (*path, step))
    return frozenset(found)


def overlaps(first: Path, second: Path) -> bool:
    """Whether one is the other or lies within it."""
    length = min(len(first), len(second))
    return first[:length] == second[:length]


def dotted(path: Path) -> str:
    """``.spec.template.spec.containers[name="a"].image``, as conflicts name fields."""
    text = ""
    for step in path:
        kind, _, name = step.partition(":")
        if kind == "f":
            text += f".{name}"
        elif kind == "k":
            inside = ",".join(f"{key}={json.dumps(value)}" for key, value in json.loads(name).items())
            text += f"[{inside}]"
        else:
            text += f"[={name}]"
    return text
