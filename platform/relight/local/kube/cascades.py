"""What goes along when an object goes: owned objects, and a namespace's contents. Finalizers are honoured.

Plans writes against the objects in memory, and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from relight.local.kube.kinds import KINDS, NAMESPACE, Kind
from relight.local.kube.watches import ChangeType

Object = dict[str, Any]
Key = tuple[str, str]
"""Namespace (empty for cluster-wide kinds) and name."""


def copied(obj: Object) -> Object:
    """A deep copy that shares nothing, and holds only what JSON can."""
    copy: Object = orjson.loads(orjson.dumps(obj))
    return copy


@dataclass(frozen=True)
class Write:
    """One planned write. ``old`` is None for a new object; ``new`` of a DELETED one is its last state."""

    type: ChangeType
    kind: Kind
    key: Key
    new: Object
    old: Object | None


class Memory:
    """All objects, and who owns whom by uid."""

    def __init__(self) -> None:
        self.objects: dict[Kind, dict[Key, Object]] = {kind: {} for kind in KINDS}
        self.places: dict[str, tuple[Kind, Key]] = {}
        self.owned: dict[str, set[str]] = {}

    def remember(self, kind: Kind, key: Key, obj: Object) -> None:
        self.objects[kind][key] = obj
        uid = obj["metadata"]["uid"]
        self.places[uid] = (kind, key)
        for owner in obj["metadata"].get("ownerReferences", ()):
            self.owned.setdefault(owner["uid"], set()).add(uid)

    def forget(self, kind: Kind, key: Key, obj: Object) -> None:
        del self.objects[kind][key]
        uid = obj["metadata"]["uid"]
        del self.places[uid]
        for owner in obj["metadata"].get("ownerReferences", ()):
            owned = self.owned.get(owner["uid"], set())
            owned.discard(uid)
            if not owned:
                self.owned.pop(owner["uid"], None)


class Plan:
    """The writes of one operation, in the order in which watchers shall see them."""

    def __init__(self, memory: Memory, stamp: str) -> None:
        self.writes: dict[tuple[Kind, Key], Write] = {}
        self._memory = memory
        self._stamp = stamp

    def put(self, write: Write) -> None:
        self.writes[write.kind, write.key] = write

    def delete(self, kind: Kind, key: Key, *, orphan: bool = False) -> None:
        """Plan the deletion of an object that exists; with finalizers it is only marked."""
        planned = self.writes.get((kind, key))
        if planned and planned.type == "DELETED":
            return
        old = self._memory.objects[kind][key]
        if kind is NAMESPACE:
            self._delete_namespace(key, old)
        elif not old["metadata"].get("finalizers"):
            self.remove(kind, key, copied(old), orphan=orphan)
        elif "deletionTimestamp" not in old["metadata"]:
            self.put(Write("MODIFIED", kind, key, self._marked(old), old))

    def remove(self, kind: Kind, key: Key, last: Object, *, orphan: bool = False) -> None:
        """Plan the end of an object and of what it alone owns. ``orphan``: it stays, without the reference."""
        uid = last["metadata"]["uid"]
        self.put(Write("DELETED", kind, key, last, self._memory.objects[kind][key]))
        for owned_uid in sorted(self._memory.owned.get(uid, ())):
            owned_kind, owned_key = self._memory.places[owned_uid]
            owned = self._memory.objects[owned_kind][owned_key]
            kept = [ref for ref in owned["metadata"]["ownerReferences"] if ref["uid"] != uid]
            if not orphan and not any(self._stays(ref["uid"]) for ref in kept):
                self.delete(owned_kind, owned_key)
            elif (owned_kind, owned_key) not in self.writes:
                new = copied(owned)
                new["metadata"]["ownerReferences"] = kept
                self.put(Write("MODIFIED", owned_kind, owned_key, new, owned))
        self._end_namespace_if_empty(key[0])

    def _stays(self, uid: str) -> bool:
        place = self._memory.places.get(uid)
        return place is not None and not self._goes(*place)

    def _goes(self, kind: Kind, key: Key) -> bool:
        planned = self.writes.get((kind, key))
        return planned is not None and planned.type == "DELETED"

    def _marked(self, old: Object) -> Object:
        new = copied(old)
        new["metadata"].setdefault("deletionTimestamp", self._stamp)
        return new

    def _delete_namespace(self, key: Key, old: Object) -> None:
        """A namespace takes its contents along, and stays, terminating, while something in it has finalizers."""
        new = {**self._marked(old), "status": {"phase": "Terminating"}}
        if new != old:
            self.put(Write("MODIFIED", NAMESPACE, key, new, old))
        for kind, objects in self._memory.objects.items():
            for inner in list(objects) if kind.namespaced else ():
                if inner[0] == key[1]:
                    self.delete(kind, inner)
        self._end_namespace_if_empty(key[1])

    def _end_namespace_if_empty(self, namespace: str) -> None:
        key = ("", namespace)
        old = self._memory.objects[NAMESPACE].get(key)
        if old is None or self._goes(NAMESPACE, key):
            return
        planned = self.writes.get((NAMESPACE, key))
        current = planned.new if planned else old
        if "deletionTimestamp" not in current["metadata"]:
            return
        for kind, objects in self._memory.objects.items():
            if kind.namespaced and any(inner[0] == namespace and not self._goes(kind, inner) for inner in objects):
                return
        self.writes.pop((NAMESPACE, key), None)  # so that its end comes after the end of its contents
        self.put(Write("DELETED", NAMESPACE, key, copied(current), old))
