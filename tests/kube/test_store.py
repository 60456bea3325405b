"""The object store: versions, generations, cascades, watches, and what a kill -9 leaves."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relight.base.errors import BadInput, Conflict, NotFound, Overloaded, PlatformError
from relight.local.kube.kinds import CONFIG_MAP, CONFIGURATION, NAMESPACE, REVISION, SERVICE
from relight.local.kube.store import HISTORY, AlreadyExists, Expired, ObjectStore
from relight.local.kube.watches import BACKLOG, Change, Watch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "objects.db"


@pytest.fixture
def store(path: Path) -> Iterator[ObjectStore]:
    store = ObjectStore.open(path, now=lambda: 1_800_000_000.0)
    yield store
    store.close()


def obj(name: str, *owners: dict[str, Any], namespace: str = "default", **fields: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": namespace}
    if owners:
        metadata["ownerReferences"] = [
            {
                "apiVersion": o["apiVersion"],
                "kind": o["kind"],
                "name": o["metadata"]["name"],
                "uid": o["metadata"]["uid"],
            }
            for o in owners
        ]
    return {"metadata": metadata, **fields}


async def take(watch: Watch, count: int) -> list[Change]:
    async with asyncio.timeout(5):
        return [await anext(watch) for _ in range(count)]


def seen(changes: list[Change]) -> list[tuple[str, str]]:
    return [(change.type, change.object["metadata"]["name"]) for change in changes]


def test_create_fills_what_the_server_owns(store: ObjectStore) -> None:
    made = store.create(SERVICE, obj("a", spec={"x": 1}))
    assert made["apiVersion"] == "serving.knative.dev/v1"
    assert made["kind"] == "Service"
    assert made["metadata"]["generation"] == 1
    assert made["metadata"]["creationTimestamp"] == "2027-01-15T08:00:00Z"
    assert made["metadata"]["resourceVersion"] == "1"
    assert len(made["metadata"]["uid"]) == 36
    with pytest.raises(AlreadyExists, match=r'services.serving.knative.dev "a" already exists'):
        store.create(SERVICE, obj("a"))
    with pytest.raises(BadInput, match=r"metadata.namespace"):
        store.create(SERVICE, {"metadata": {"name": "a"}})


def test_what_goes_in_is_copied(store: ObjectStore) -> None:
    given = obj("a", spec={"x": [1]})
    store.create(SERVICE, given)
    given["spec"]["x"].append(2)
    assert (store.get(SERVICE, "default", "a") or {})["spec"] == {"x": [1]}


def test_generation_counts_specs_only(store: ObjectStore) -> None:
    made = store.create(SERVICE, obj("a", spec={"x": 1}))
    labelled = store.update(SERVICE, {**made, "metadata": {**made["metadata"], "labels": {"l": "1"}}})
    assert labelled["metadata"]["generation"] == 1
    changed = store.update(SERVICE, {**labelled, "spec": {"x": 2}, "status": {"ignored": True}})
    assert changed["metadata"]["generation"] == 2
    assert "status" not in changed
    with_status = store.set_status(SERVICE, "default", "a", {"url": "u"})
    assert with_status is not None
    assert with_status["metadata"]["generation"] == 2
    assert with_status["spec"] == {"x": 2}
    assert store.set_status(SERVICE, "default", "nope", {}) is None


def test_equal_writes_do_not_happen(store: ObjectStore) -> None:
    made = store.create(SERVICE, obj("a", spec={"x": 1}))
    store.set_status(SERVICE, "default", "a", {"url": "u"})
    version = store.version
    store.update(SERVICE, obj("a", spec={"x": 1}))
    store.set_status(SERVICE, "default", "a", {"url": "u"})
    assert store.version == version
    assert made["metadata"]["resourceVersion"] == "1"


def test_stale_writes_conflict(store: ObjectStore) -> None:
    made = store.create(SERVICE, obj("a", spec={"x": 1}))
    store.update(SERVICE, {**made, "spec": {"x": 2}})
    with pytest.raises(Conflict, match="the object has been modified; please apply your changes"):
        store.update(SERVICE, {**made, "spec": {"x": 3}})
    with pytest.raises(Conflict, match="UID in precondition"):
        store.update(SERVICE, obj("a") | {"metadata": {**obj("a")["metadata"], "uid": "other"}})
    with pytest.raises(Conflict):
        store.set_status(SERVICE, "default", "a", {}, version="1")
    with pytest.raises(NotFound, match='"b" not found'):
        store.update(SERVICE, obj("b"))


def test_owned_objects_go_with_their_last_owner(store: ObjectStore) -> None:
    service = store.create(SERVICE, obj("a"))
    other = store.create(SERVICE, obj("b"))
    configuration = store.create(CONFIGURATION, obj("a", service))
    store.create(REVISION, obj("a-00001", configuration))
    store.create(REVISION, obj("shared", configuration, other))
    store.delete(SERVICE, "default", "a")
    assert store.list(CONFIGURATION)[0] == []
    [shared] = store.list(REVISION)[0]
    assert [ref["name"] for ref in shared["metadata"]["ownerReferences"]] == ["b"]
    store.delete(SERVICE, "default", "b")
    assert store.list(REVISION)[0] == []
    assert store.delete(SERVICE, "default", "b") is None


def test_orphans_stay(store: ObjectStore) -> None:
    service = store.create(SERVICE, obj("a"))
    store.create(CONFIGURATION, obj("a", service))
    store.delete(SERVICE, "default", "a", orphan=True)
    [orphan] = store.list(CONFIGURATION)[0]
    assert orphan["metadata"]["ownerReferences"] == []


def test_finalizers_hold_an_object_back(store: ObjectStore) -> None:
    made = store.create(CONFIG_MAP, {"metadata": {"name": "a", "namespace": "default", "finalizers": ["x/y"]}})
    marked = store.delete(CONFIG_MAP, "default", "a")
    assert marked is not None
    assert marked["metadata"]["deletionTimestamp"]
    assert store.delete(CONFIG_MAP, "default", "a") == marked
    metadata = {**made["metadata"], "finalizers": [], "resourceVersion": marked["metadata"]["resourceVersion"]}
    store.update(CONFIG_MAP, {**made, "metadata": metadata})
    assert store.get(CONFIG_MAP, "default", "a") is None


def test_a_namespace_takes_its_contents_along(store: ObjectStore) -> None:
    store.create(NAMESPACE, {"metadata": {"name": "n"}, "status": {"phase": "Active"}})
    first = store.create(SERVICE, obj("a", namespace="n"))
    second = store.create(SERVICE, obj("b", namespace="n"))
    store.create(REVISION, obj("r", first, second, namespace="n"))
    held = store.create(CONFIG_MAP, {"metadata": {"name": "c", "namespace": "n", "finalizers": ["x/y"]}})
    store.create(SERVICE, obj("a"))
    store.delete(NAMESPACE, None, "n")
    assert (store.get(NAMESPACE, None, "n") or {})["status"] == {"phase": "Terminating"}
    assert store.list(REVISION)[0] == []
    assert [found["metadata"]["namespace"] for found in store.list(SERVICE)[0]] == ["default"]
    metadata = {
        name: value for name, value in held["metadata"].items() if name not in ("finalizers", "resourceVersion")
    }
    store.update(CONFIG_MAP, {"metadata": metadata})
    assert store.get(NAMESPACE, None, "n") is None


@pytest.mark.anyio
async def test_watch_begins_with_what_exists(store: ObjectStore) -> None:
    store.create(SERVICE, obj("b"))
    store.create(SERVICE, obj("a"))
    store.create(SERVICE, obj("elsewhere", namespace="n"))
    watch = store.watch(SERVICE, "default")
    store.create(CONFIGURATION, obj("other-kind"))
    store.set_status(SERVICE, "default", "a", {"url": "u"})
    store.delete(SERVICE, "default", "b")
    assert seen(await take(watch, 4)) == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]
    watch.close()
    with pytest.raises(StopAsyncIteration):
        await anext(watch)


@pytest.mark.anyio
async def test_watch_waits_and_wakes(store: ObjectStore) -> None:
    watch = store.watch(SERVICE)
    waiting = asyncio.ensure_future(take(watch, 1))
    await asyncio.sleep(0)
    store.create(SERVICE, obj("a"))
    assert seen(await waiting) == [("ADDED", "a")]
    ended = asyncio.ensure_future(anext(watch, None))
    await asyncio.sleep(0)
    store.close()
    assert await ended is None


@pytest.mark.anyio
async def test_watch_resumes_from_a_version_after_a_restart(store: ObjectStore, path: Path) -> None:
    store.create(SERVICE, obj("a") | {"metadata": {"name": "a", "namespace": "default", "labels": {"l": "1"}}})
    _, version = store.list(SERVICE)
    store.update(SERVICE, obj("a", spec={"x": 1}))
    store.create(SERVICE, obj("b"))
    store.delete(SERVICE, "default", "b")
    store.close()
    again = ObjectStore.open(path)
    changes = await take(again.watch(SERVICE, "default", version), 3)
    assert seen(changes) == [("MODIFIED", "a"), ("ADDED", "b"), ("DELETED", "b")]
    assert [change.was for change in changes] == [{"l": "1"}, None, {}]
    assert [change.version for change in changes] == [version + 1, version + 2, version + 3]
    assert again.version == version + 3
    again.close()


def test_watch_from_too_long_ago_is_expired(store: ObjectStore) -> None:
    store.create(CONFIG_MAP, obj("a"))
    for number in range(HISTORY + 1):
        store.update(CONFIG_MAP, obj("a", data={"n": str(number)}))
    with pytest.raises(Expired, match="too old resource version: 1 "):
        store.watch(CONFIG_MAP, None, 1)
    with pytest.raises(Expired):
        store.watch(CONFIG_MAP, None, store.version + 1)
    store.watch(CONFIG_MAP, None, store.version - HISTORY)


@pytest.mark.anyio
async def test_a_slow_watcher_is_closed_not_fed(store: ObjectStore) -> None:
    slow = store.watch(CONFIG_MAP)
    store.create(CONFIG_MAP, obj("a"))
    for number in range(BACKLOG):
        store.update(CONFIG_MAP, obj("a", data={"n": str(number)}))
    assert slow.pending == 0
    with pytest.raises(Overloaded, match="fell 2048 changes behind"):
        await anext(slow)


def test_a_failed_commit_changes_nothing(store: ObjectStore, path: Path) -> None:
    store.create(SERVICE, obj("a", spec={"x": 1}))
    with sqlite3.connect(path) as other:
        other.execute("DROP TABLE changes")
    other.close()
    with pytest.raises(PlatformError, match="cannot be written"):
        store.update(SERVICE, obj("a", spec={"x": 2}))
    assert (store.get(SERVICE, "default", "a") or {})["spec"] == {"x": 1}
    assert store.version == 1


WRITER = """
import sys
from pathlib import Path
from relight.local.kube.kinds import CONFIG_MAP
from relight.local.kube.store import ObjectStore

store = ObjectStore.open(Path(sys.argv[1]))
store.create(CONFIG_MAP, {"metadata": {"name": "a", "namespace": "default"}})
number = 0
while True:
    number += 1
    made = store.update(CONFIG_MAP, {"metadata": {"name": "a", "namespace": "default"}, "data": {"n": str(number)}})
    print(number, made["metadata"]["resourceVersion"], flush=True)
"""


def test_what_was_acknowledged_survives_kill_9(path: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for _ in range(50):
        assert writer.stdout.readline()
    os.kill(writer.pid, signal.SIGKILL)
    acknowledged = [line.split() for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    writer.wait(10)
    writer.stdout.close()
    store = ObjectStore.open(path)
    found = store.get(CONFIG_MAP, "default", "a")
    assert found is not None
    number, version = acknowledged[-1] if acknowledged else ("50", "51")
    assert int(found["data"]["n"]) >= int(number)
    assert store.version >= int(version)
    assert found["metadata"]["resourceVersion"] == str(store.version)
    store.update(CONFIG_MAP, obj("a", data={}))
    store.close()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(
            b"this is no database, it only has the right name and some length", "cannot be read", id="garbage"
        ),
        pytest.param(99, "has format 99; this relight reads up to 1: update relight", id="newer"),
    ],
)
def test_a_file_that_is_not_ours_is_refused(path: Path, content: bytes | int, message: str) -> None:
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        database = sqlite3.connect(path)
        database.execute(f"PRAGMA user_version={content}")
        database.close()
    with pytest.raises(PlatformError, match=message):
        ObjectStore.open(path)


def test_the_file_is_private(store: ObjectStore, path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600
