"""Server-side apply: who owns which field, conflicts between owners, and what an owner no longer applies is removed.

Ownership lives in ``metadata.managedFields`` in Kubernetes' own form. Writes through the API are recorded; controllers
write past it, so what they set (status, labels) belongs to nobody and conflicts with nobody.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from relight.base.errors import Conflict
from relight.local.kube.cascades import Object, copied
from relight.local.kube.fields import (
    Fields,
    Path,
    dotted,
    from_v1,
    item_key,
    leaves,
    merge_keys,
    overlaps,
    to_v1,
)
from relight.local.kube.kinds import Kind

_UNMANAGED = (
    "name",
    "namespace",
    "generateName",
    "creationTimestamp",
    "selfLink",
    "uid",
    "generation",
    "managedFields",
    "resourceVersion",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)


@dataclass(frozen=True)
class Clash:
    """A field that another manager owns with another value."""

    manager: str
    path: str


class ApplyConflict(Conflict):
    """Fields of an apply are owned by others, and force was not given."""

    code = "apply_conflict"

    def __init__(self, clashes: list[Clash]) -> None:
        self.clashes = clashes
        managers = sorted({clash.manager for clash in clashes})
        parts = [
            f'conflict with "{manager}"'
            + (": " if len(found) == 1 else ":\n- ")
            + ("\n- " if len(found) > 1 else "").join(found)
            for manager in managers
            for found in [[clash.path for clash in clashes if clash.manager == manager]]
        ]
        plural = "s" if len(clashes) > 1 else ""
        super().__init__(f"Apply failed with {len(clashes)} conflict{plural}: " + "\n".join(parts))


def _managed(obj: Object, subresource: str | None) -> dict[str, Any]:
    """The part of an object that managers own fields of: by the object's own path all but status, else that alone."""
    if subresource is not None:
        return {subresource: obj[subresource]} if subresource in obj else {}
    part = {name: value for name, value in obj.items() if name not in ("apiVersion", "kind", "metadata", "status")}
    metadata = {name: value for name, value in obj.get("metadata", {}).items() if name not in _UNMANAGED}
    return {**part, "metadata": metadata} if metadata else part


def _entries(obj: Object) -> list[tuple[dict[str, Any], Fields]]:
    found = obj.get("metadata", {}).get("managedFields") or []
    return [(entry, from_v1(entry.get("fieldsV1"))) for entry in found if isinstance(entry, dict)]


def record(
    kind: Kind, old: Object | None, new: Object, manager: str, now: str, *, subresource: str | None = None
) -> Object:
    """``new`` with its managedFields: what changed since ``old`` belongs to ``manager``, as an Update."""
    before = leaves(kind, _managed(old or {}, subresource))
    after = leaves(kind, _managed(new, subresource))
    changed = frozenset(path for path, value in after.items() if path not in before or before[path] != value)
    gone = before.keys() - after.keys()
    lost = changed | gone
    entries = [
        (entry, fields - lost)
        for entry, fields in _entries(new if new.get("metadata", {}).get("managedFields") is not None else old or {})
    ]
    return _with_entries(kind, new, entries, (manager, "Update", subresource), changed, now, add=True)


def apply(
    kind: Kind,
    live: Object | None,
    applied: Object,
    manager: str,
    now: str,
    *,
    force: bool,
    subresource: str | None = None,
) -> Object:
    """The object after ``manager`` applied its configuration. ApplyConflict names every field that others own."""
    me = (manager, "Apply", subresource)
    wanted = leaves(kind, _managed(applied, subresource))
    fields = frozenset(wanted)
    if live is None:
        made = copied(applied)
        made.setdefault("metadata", {}).pop("managedFields", None)
        return _with_entries(kind, made, [], me, fields, now)
    present = leaves(kind, _managed(live, subresource))
    entries = _entries(live)
    others = [(entry, owned) for entry, owned in entries if not _is(entry, me)]
    mine = frozenset[Path]().union(*(owned for entry, owned in entries if _is(entry, me)))
    contested = [path for path, value in wanted.items() if _differs(path, value, present)]
    clashes = [
        (Clash(str(entry.get("manager")), dotted(path)), path)
        for entry, owned in others
        for path in contested
        if any(overlaps(path, other) for other in owned)
    ]
    if clashes and not force:
        raise ApplyConflict([clash for clash, _ in clashes])
    taken = [path for _, path in clashes]
    others = [
        (entry, frozenset(path for path in owned if not any(overlaps(path, other) for other in taken)))
        for entry, owned in others
    ]
    kept = frozenset[Path]().union(*(owned for _, owned in others))
    merged = copied(live)
    for path in sorted(mine - fields - kept, key=len):
        if not any(overlaps(path, other) and len(other) >= len(path) for other in fields | kept):
            _remove(merged, path)
    metadata = {name: value for name, value in applied.get("metadata", {}).items() if name not in _UNMANAGED}
    merged = _merge("", merged, {**applied, "metadata": metadata}, merge_keys(kind))
    return _with_entries(kind, merged, others, me, fields, now)


def _differs(path: Path, value: Any, present: Mapping[Path, Any]) -> bool:
    if path in present:
        return bool(present[path] != value)
    # an empty object applied onto one with contents adds nothing
    return value != {} or not any(other[: len(path)] == path for other in present)


Owner = tuple[str, str, str | None]
"""Manager, operation, subresource: what makes an entry of managedFields another one."""


def _is(entry: dict[str, Any], owner: Owner) -> bool:
    return (entry.get("manager"), entry.get("operation"), entry.get("subresource")) == owner


def _with_entries(
    kind: Kind,
    obj: Object,
    entries: Iterable[tuple[dict[str, Any], Fields]],
    owner: Owner,
    fields: Fields,
    now: str,
    *,
    add: bool = False,
) -> Object:
    """``obj`` with these entries and the manager's own. An entry whose fields did not change keeps its time."""
    result: list[dict[str, Any]] = []
    own: dict[str, Any] | None = None
    for entry, owned in entries:
        if _is(entry, owner):
            own = entry
            fields = fields | owned if add else fields
        elif owned:
            result.append(entry if from_v1(entry.get("fieldsV1")) == owned else {**entry, "fieldsV1": to_v1(owned)})
    previous = own or next((entry for entry, _ in _entries(obj) if _is(entry, owner)), None)
    if previous is not None and from_v1(previous.get("fieldsV1")) == fields:
        result.append(previous)
    elif fields:
        result.append(
            {
                "manager": owner[0],
                "operation": owner[1],
                "apiVersion": kind.api_version,
                "time": now,
                "fieldsType": "FieldsV1",
                "fieldsV1": to_v1(fields),
                **({"subresource": owner[2]} if owner[2] else {}),
            }
        )
    metadata = {**obj.get("metadata", {}), "managedFields": result}
    if not result:
        del metadata["managedFields"]
    return {**obj, "metadata": metadata}


def _merge(name: str, live: Any, applied: Any, keys: Mapping[str, tuple[str, ...]]) -> Any:
    if isinstance(live, dict) and isinstance(applied, dict):
        merged = dict(live)
        for key, value in applied.items():
            merged[key] = _merge(key, live[key], value, keys) if key in live else value
        return merged
    if isinstance(live, list) and isinstance(applied, list):
        if name == "finalizers":
            return [*live, *(item for item in applied if item not in live)]
        if name in keys:
            return _merge_items(live, applied, keys[name], keys)
    return applied


def _merge_items(
    live: list[Any], applied: list[Any], by: tuple[str, ...], keys: Mapping[str, tuple[str, ...]]
) -> list[Any]:
    found = {item_key(item, by): index for index, item in enumerate(live)}
    merged = list(live)
    for item in applied:
        index = found.get(item_key(item, by))
        if index is None:
            merged.append(item)
        else:
            merged[index] = _merge("", live[index], item, keys)
    return merged


def _remove(obj: Any, path: Path) -> bool:
    """Remove a field, and the objects and lists that become empty by it. Whether ``obj`` itself is now empty."""
    step, rest = path[0], path[1:]
    form, _, name = step.partition(":")
    if form == "f" and isinstance(obj, dict):
        if name in obj and (not rest or _remove(obj[name], rest)):
            del obj[name]
    elif isinstance(obj, list):
        for index, item in enumerate(obj):
            if _matches(item, form, name):
                if not rest or _remove(item, rest):
                    del obj[index]
                break
    return isinstance(obj, dict | list) and not obj


def _matches(item: Any, form: str, name: str) -> bool:
    wanted = json.loads(name)
    if form == "v":
        return bool(item == wanted)
    return item_key(item, tuple(wanted)) == tuple(wanted.values())
