"""Objects with versions and watches: what etcd and the API server's storage layer are to a cluster.

One SQLite file (WAL, ``synchronous=NORMAL``: a killed process loses nothing that was acknowledged, a power cut may lose
the last moments but never tears the file), one global counter of versions, a bounded log of changes so that a watch can
resume. All objects are also held in memory: reads touch no disk.

Every operation plans its writes first (an owner takes what it owns along, a namespace its contents), commits them in
one transaction, then changes the memory and tells the watchers. So a failed commit leaves no trace.

All calls belong on one thread, the event loop's. Objects that come out are shared: copy before changing.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from relight.base.errors import BadInput, Conflict, NoSpace, NotFound, PlatformError, RelightError
from relight.base.ids import new_id
from relight.local.kube.cascades import Key, Memory, Object, Plan, Write, copied
from relight.local.kube.kinds import KINDS, NAMESPACE, Kind
from relight.local.kube.watches import Change, Watch

__all__ = ["AlreadyExists", "Change", "Expired", "ObjectStore", "Watch", "timestamp"]

FORMAT = 1
"""Number of the file's layout (``PRAGMA user_version``)."""
HISTORY = 4096
"""Changes kept for watches that resume; older ones are answered with Expired (410)."""

_SYSTEM_FIELDS = ("uid", "creationTimestamp", "resourceVersion", "generation", "deletionTimestamp")

_SCHEMA = """
CREATE TABLE objects (resource TEXT, namespace TEXT, name TEXT, body BLOB NOT NULL,
    PRIMARY KEY (resource, namespace, name)) WITHOUT ROWID;
CREATE TABLE changes (version INTEGER PRIMARY KEY, resource TEXT NOT NULL, namespace TEXT NOT NULL,
    type TEXT NOT NULL, was BLOB, body BLOB NOT NULL);
"""


class AlreadyExists(Conflict):
    """An object of that kind and name is there already."""

    code = "already_exists"


class Expired(RelightError):
    """The version that a watch should resume from is no longer, or not yet, in the log of changes."""

    code = "expired"
    status = 410


def timestamp(seconds: float) -> str:
    """RFC 3339 in UTC, whole seconds, as Kubernetes writes ``metav1.Time``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _key(kind: Kind, namespace: str | None, name: str) -> Key:
    return (namespace or "" if kind.namespaced else "", name)


def _body(obj: Object) -> Object:
    """What counts for the generation: all but metadata and status."""
    return {name: value for name, value in obj.items() if name not in ("metadata", "status", "apiVersion", "kind")}


def _shared(value: Any, words: dict[str, str]) -> Any:
    """The same value with each text only once in memory: thousands of objects say much the same."""
    if isinstance(value, str):
        return words.setdefault(value, value)
    if isinstance(value, dict):
        return {name: _shared(inner, words) for name, inner in value.items()}
    return [_shared(inner, words) for inner in value] if isinstance(value, list) else value


def _check_version(kind: Kind, old: Object, given: dict[str, Any]) -> None:
    failed = f'Operation cannot be fulfilled on {kind.resource} "{old["metadata"]["name"]}": '
    has, wants = old["metadata"]["uid"], given.get("uid")
    if wants and wants != has:
        raise Conflict(f"{failed}Precondition failed: UID in precondition: {wants}, UID in object meta: {has}")
    if given.get("resourceVersion") and given["resourceVersion"] != old["metadata"]["resourceVersion"]:
        raise Conflict(
            f"{failed}the object has been modified; please apply your changes to the latest version and try again"
        )


class ObjectStore:
    """See the module. Open with ``ObjectStore.open``; ``now`` gives seconds since the epoch, for timestamps."""

    def __init__(self, database: sqlite3.Connection, now: Callable[[], float]) -> None:
        self._db = database
        self._now = now
        self._version = 0
        self._memory = Memory()
        self._objects = self._memory.objects
        self._watches: dict[Kind, list[tuple[str | None, Watch]]] = {kind: [] for kind in KINDS}

    @classmethod
    def open(cls, path: Path, *, now: Callable[[], float] = time.time) -> ObjectStore:
        """Open or make the file (mode 0600: it holds Secrets). PlatformError if it is no such file, or a newer one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        try:
            database = sqlite3.connect(path, isolation_level=None)
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=NORMAL")
            (found,) = database.execute("PRAGMA user_version").fetchone()
            if found > FORMAT:
                database.close()
                raise PlatformError(f"{path} has format {found}; this relight reads up to {FORMAT}: update relight")
            if found == 0:
                database.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={FORMAT}; COMMIT;")
            store = cls(database, now)
            store._load()
        except sqlite3.DatabaseError as error:
            raise PlatformError(f"{path} cannot be read as the platform's objects: {error}") from error
        return store

    def _load(self) -> None:
        (self._version,) = self._db.execute("SELECT coalesce(max(version), 0) FROM changes").fetchone()
        kinds = {kind.resource: kind for kind in KINDS}
        words: dict[str, str] = {}
        for resource, namespace, name, body in self._db.execute("SELECT * FROM objects"):
            if resource in kinds:
                self._memory.remember(kinds[resource], (namespace, name), _shared(orjson.loads(body), words))

    def close(self) -> None:
        """End all watches and close the file. Calling again does nothing."""
        for watches in self._watches.values():
            for _, watch in list(watches):
                watch.close()
        self._db.close()

    @property
    def oldest(self) -> int:
        """The oldest version from which a watch, or a list in pages, can go on."""
        return max(0, self._version - HISTORY)

    @property
    def version(self) -> int:
        """The version of the last change."""
        return self._version

    # Reading

    def get(self, kind: Kind, namespace: str | None, name: str) -> Object | None:
        return self._objects[kind].get(_key(kind, namespace, name))

    def owned(self, uid: str, kind: Kind) -> list[Object]:
        """The objects of a kind that an owner has, in order of their names."""
        places = (self._memory.places[one] for one in self._memory.owned.get(uid, ()))
        return [self._objects[kind][key] for key in sorted(key for its, key in places if its == kind)]

    def list(
        self, kind: Kind, namespace: str | None = None, selector: Callable[[Object], bool] | None = None
    ) -> tuple[list[Object], int]:
        """Objects in order of namespace and name, and the version at which this was so. None: all namespaces."""
        found = [
            obj
            for key, obj in sorted(self._objects[kind].items())
            if (namespace is None or key[0] == namespace) and (selector is None or selector(obj))
        ]
        return found, self._version

    def watch(self, kind: Kind, namespace: str | None = None, since: int | None = None) -> Watch:
        """Changes after version ``since``; None: first all that exists, as ADDED. Expired if ``since`` is too old."""
        if since is None:
            initial = [Change("ADDED", obj) for obj in self.list(kind, namespace)[0]]
        else:
            if not self._version - HISTORY <= since <= self._version:
                raise Expired(f"too old resource version: {since} ({self.oldest})")
            rows = self._db.execute(
                "SELECT type, was, body FROM changes WHERE version > ? AND resource = ?"
                " AND (? IS NULL OR namespace = ?) ORDER BY version",
                (since, kind.resource, namespace, namespace),
            )
            initial = [
                Change(type_, orjson.loads(body), None if was is None else orjson.loads(was))
                for type_, was, body in rows
            ]
        entry: tuple[str | None, Watch] = (namespace, Watch(initial, lambda _: self._watches[kind].remove(entry)))
        self._watches[kind].append(entry)
        return entry[1]

    # Writing

    def create(self, kind: Kind, obj: Object) -> Object:
        """Store a new object; AlreadyExists if it is there. Fills uid, creationTimestamp, generation, version."""
        new = copied(obj)
        metadata = new.setdefault("metadata", {})
        for field in ("name", "namespace") if kind.namespaced else ("name",):
            if not metadata.get(field):
                raise BadInput(f"{kind.kind}: metadata.{field} is missing", param=f"metadata.{field}")
        key = _key(kind, metadata.get("namespace"), metadata["name"])
        if key in self._objects[kind]:
            raise AlreadyExists(f'{kind.resource} "{key[1]}" already exists')
        metadata |= {"uid": new_id(), "creationTimestamp": timestamp(self._now())}
        metadata.pop("deletionTimestamp", None)
        if kind.status and kind is not NAMESPACE:
            metadata["generation"] = 1
        new |= {"apiVersion": kind.api_version, "kind": kind.kind}
        self._commit([Write("ADDED", kind, key, new, None)])
        return new

    def update(self, kind: Kind, obj: Object) -> Object:
        """Replace all but the status (where that is a subresource). Equal to what is there: nothing happens.

        Conflict when ``metadata.resourceVersion`` or ``uid`` is given and differs; NotFound when there is no such
        object. Removing the last finalizer of an object that is being deleted removes it.
        """
        key, old, new = self._replacement(kind, obj)
        if new == old:
            return old
        if "deletionTimestamp" in new["metadata"] and not new["metadata"].get("finalizers"):
            plan = self._plan()
            plan.remove(kind, key, new)
            self._commit(plan.writes.values())
        else:
            self._commit([Write("MODIFIED", kind, key, new, old)])
        return new

    def preview(self, kind: Kind, obj: Object) -> Object:
        """What ``update`` would store, with its errors, and nothing stored."""
        return self._replacement(kind, obj)[2]

    def _replacement(self, kind: Kind, obj: Object) -> tuple[Key, Object, Object]:
        new = copied(obj)
        metadata = new.setdefault("metadata", {})
        key = _key(kind, metadata.get("namespace"), metadata.get("name", ""))
        old = self._objects[kind].get(key)
        if old is None:
            raise NotFound(f'{kind.resource} "{key[1]}" not found')
        _check_version(kind, old, metadata)
        for field in _SYSTEM_FIELDS:
            metadata.pop(field, None)
            if field in old["metadata"]:
                metadata[field] = old["metadata"][field]
        if kind.status:
            new.pop("status", None)
            if "status" in old:
                new["status"] = old["status"]
        new |= {"apiVersion": kind.api_version, "kind": kind.kind}
        if "generation" in metadata and _body(new) != _body(old):
            metadata["generation"] += 1
        return key, old, new

    def set_status(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        status: dict[str, Any],
        *,
        version: str | None = None,
        managed: Sequence[Any] | None = None,
    ) -> Object | None:
        """Replace the status alone; None if there is no such object. Conflict if ``version`` is not the current one.

        ``managed``: the object's new managedFields; None leaves them as they are.
        """
        key = _key(kind, namespace, name)
        old = self._objects[kind].get(key)
        if old is None:
            return None
        _check_version(kind, old, {"resourceVersion": version})
        metadata = dict(old["metadata"])
        if managed is not None:
            metadata.pop("managedFields", None)
            metadata |= {"managedFields": list(managed)} if managed else {}
        if old.get("status", {}) == status and metadata == old["metadata"]:
            return old
        new = copied({**old, "metadata": metadata, "status": status})
        self._commit([Write("MODIFIED", kind, key, new, old)])
        return new

    def delete(self, kind: Kind, namespace: str | None, name: str, *, orphan: bool = False) -> Object | None:
        """Delete an object and all that it alone owns; None if there is no such object.

        With finalizers it stays, marked with a deletionTimestamp, until they are gone. ``orphan`` keeps what it owns.
        The answer is the object as it was last.
        """
        key = _key(kind, namespace, name)
        old = self._objects[kind].get(key)
        if old is None:
            return None
        plan = self._plan()
        plan.delete(kind, key, orphan=orphan)
        self._commit(plan.writes.values())
        write = plan.writes.get((kind, key))
        return old if write is None else write.new

    def _plan(self) -> Plan:
        return Plan(self._memory, timestamp(self._now()))

    # Committing

    def _commit(self, writes: Collection[Write]) -> None:
        version = self._version
        changes = []
        with self._transaction():
            for write in writes:
                version += 1
                write.new["metadata"]["resourceVersion"] = str(version)
                was = None if write.old is None else write.old["metadata"].get("labels") or {}
                changes.append((write, Change(write.type, write.new, was)))
                self._write(version, write, was)
            self._db.execute("DELETE FROM changes WHERE version <= ?", (version - HISTORY,))
        self._version = version
        for write, _ in changes:
            if write.old is not None:
                self._memory.forget(write.kind, write.key, write.old)
            if write.type != "DELETED":
                self._memory.remember(write.kind, write.key, write.new)
        for write, change in changes:
            for namespace, watch in list(self._watches[write.kind]):
                if namespace is None or namespace == write.key[0]:
                    watch.push(change)

    def _write(self, version: int, write: Write, was: dict[str, str] | None) -> None:
        body = orjson.dumps(write.new)
        place = (write.kind.resource, *write.key)
        if write.type == "DELETED":
            self._db.execute("DELETE FROM objects WHERE resource = ? AND namespace = ? AND name = ?", place)
        else:
            self._db.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?)", (*place, body))
        self._db.execute(
            "INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?)",
            (version, place[0], place[1], write.type, None if was is None else orjson.dumps(was), body),
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                raise NoSpace("the disk that holds the platform's objects is full; nothing was changed") from error
            raise PlatformError(f"the platform's objects cannot be written: {error}") from error
