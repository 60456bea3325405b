"""The Revision controller: from an object to a gate, replicas and an autoscaler, and back to its status.

A Revision's spec never changes, but its annotations may: its autoscaling annotations are copied to the PodAutoscaler
and count from that moment, without a new revision.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relight.base.errors import BadInput, Overloaded, RelightError
from relight.base.tasks import Tasks
from relight.decide import gpus
from relight.decide.defaults import CLASS_HPA
from relight.decide.scaling import RevisionScaling
from relight.local.conditions import is_true
from relight.local.kube import configs, kinds
from relight.local.kube.configs import Configs
from relight.local.kube.store import ObjectStore
from relight.local.reconciling import Queue
from relight.local.recording import Recorder
from relight.local.serving import objects, sources, specifying, statuses
from relight.local.serving.activator import Gate, Gates
from relight.local.serving.autoscaling import Autoscaler, Scaler
from relight.local.serving.launching import Launcher
from relight.local.serving.machine import Machine
from relight.local.serving.objects import rfc3339
from relight.local.serving.placing import Placing, Shortage
from relight.local.serving.pods import Pods
from relight.local.serving.replica import Reason
from relight.local.serving.replicas import Replicas
from relight.local.serving.types import RevisionKey, RevisionSpec
from relight.local.serving.utilizing import UtilizationScaler

log = logging.getLogger("relight.local.serving")

Object = dict[str, Any]


@dataclass
class Running:
    """What belongs to one revision while it exists."""

    spec: RevisionSpec
    gate: Gate
    replicas: Replicas
    scaler: Scaler


class Revisions:
    """Reconciles Revisions. All on the event loop; only copying a folder is done in a thread."""

    def __init__(
        self,
        store: ObjectStore,
        gates: Gates,
        launcher: Launcher,
        pods: Pods,
        autoscaler: Autoscaler,
        tasks: Tasks,
        *,
        functions: Path | None,
        copies: Path,
        environ: Mapping[str, str],
        reachable: Callable[[RevisionKey], bool],
        following: Callable[[RevisionKey], bool],
        machine: Machine,
        recorder: Recorder,
    ) -> None:
        self._store = store
        self._gates = gates
        self._launcher = launcher
        self._pods = pods
        self._autoscaler = autoscaler
        self._tasks = tasks
        self._functions = functions
        self._copies = copies
        self._environ = environ
        self._reachable = reachable
        self._configs = Configs(store)
        self._running: dict[RevisionKey, Running] = {}
        self._recorder = recorder
        self.placing = Placing(
            machine, self._running, tasks, reachable=reachable, following=following, told=self._waits_for_room
        )
        self._leaving: dict[str, str] = {}
        """Code that replicas still run from, of revisions that are gone: uid to digest."""
        self._copying = asyncio.Lock()
        self.queue: Queue[RevisionKey] = Queue("revisions", self._look, tasks)

    def start(self) -> None:
        sources.prune(self._copies, self._used())
        self._tasks.spawn(self.queue.run(), "reconcile")
        self._tasks.spawn(self._autoscaler.run(), "autoscaler")
        self._tasks.spawn(self._pods.note_logs(), "note-logs")
        self._tasks.spawn(self._watch_pods(), "watch-pods")
        self._tasks.spawn(self._watch_configs(), "watch-configs")

    def restore(self, keys: Iterable[RevisionKey]) -> None:
        """Gates for revisions that get traffic, so that requests are held until their turn has come."""
        for key in keys:
            revision = self._store.get(kinds.REVISION, *key)
            if revision is not None:
                with contextlib.suppress(BadInput):  # it is refused, with the reason, when its turn comes
                    self._gates.ensure(key, specifying.limits_of(revision), specifying.hold_of(revision))

    def _used(self) -> set[str]:
        """Digests of the code that somebody may still run."""
        found = (objects.annotations_of(one) for one in self._store.list(kinds.REVISION)[0])
        return {one[sources.SNAPSHOT] for one in found if sources.SNAPSHOT in one} | set(self._leaving.values())

    async def _watch_pods(self) -> None:
        """Whoever deletes a Pod deletes its replica."""
        while True:
            try:
                async for change in self._store.watch(kinds.POD):
                    meta = change.object["metadata"]
                    gone = change.type == "DELETED"
                    if gone or "deletionTimestamp" in meta:
                        self._pod_deleted(meta, at_once=gone)
            except Overloaded as error:
                log.warning("pods.watch error=%s", error)

    def _pod_deleted(self, meta: Mapping[str, Any], *, at_once: bool) -> None:
        key = RevisionKey(meta["namespace"], (meta.get("labels") or {}).get(objects.REVISION, ""))
        running, revision = self._running.get(key), self._store.get(kinds.REVISION, *key)
        if running is not None and revision is not None and revision["metadata"]["uid"] == running.spec.uid:
            running.replicas.evict(meta["name"], at_once=at_once)

    async def _watch_configs(self) -> None:
        """What the cluster's ConfigMaps say counts for all revisions from the next decision on."""
        while True:
            try:
                async for _ in self._store.watch(kinds.CONFIG_MAP, configs.NAMESPACE):
                    for key in self._running:
                        self.queue.mark(key)
            except Overloaded as error:
                log.warning("configs.watch error=%s", error)

    async def stop(self) -> None:
        """Stop every replica, each drained."""
        await asyncio.gather(*(running.replicas.stop(Reason.SHUT_DOWN) for running in self._running.values()))

    def mark(self, namespace: str, name: str) -> None:
        self.queue.mark(RevisionKey(namespace, name))

    def wake(self, key: RevisionKey) -> None:
        """A request is held and there is no replica."""
        if key in self._running:
            self._autoscaler.poke(key)
        else:
            self.queue.mark(key, first=True)

    def refused(self, key: RevisionKey, pod: str) -> None:
        """The router could not connect to a replica."""
        running = self._running.get(key)
        if running is not None:
            running.replicas.refused(pod)

    async def _look(self, key: RevisionKey) -> None:
        revision = self._store.get(kinds.REVISION, *key)
        running = self._running.get(key)
        if running is not None and (revision is None or revision["metadata"]["uid"] != running.spec.uid):
            self._forget(key)
            running = None
        if revision is None:
            self._tasks.spawn(self._prune(), "prune-sources")
            return
        if revision["metadata"].get("deletionTimestamp"):
            return
        reachable = self._reachable(key)
        try:
            scaling = RevisionScaling.from_annotations(
                objects.annotations_of(revision),
                revision["spec"].get("containerConcurrency") or 0,
                self._configs.scaling(),
                count_starting=gpus.wanted(revision["spec"]) is not None,
            )
            if running is None:
                running = await self._begin(key, revision, scaling)
        except (RelightError, ValueError) as error:
            self._refused(key, error)
            return
        self._ensure_autoscaler(revision, reachable)
        running.scaler.configure(scaling, reachable or not running.scaler.scale.initialized, time.monotonic())
        if reachable:
            self.placing.routed(key)
        elif running.gate.held:
            running.gate.move()
        self.placing.settle()
        self._show(key)

    async def _begin(self, key: RevisionKey, revision: Object, scaling: RevisionScaling) -> Running:
        digest = objects.annotations_of(revision).get(sources.SNAPSHOT)
        if digest is None:
            status = statuses.of_revision(revision, statuses.resolving(), rfc3339())
            self._store.set_status(kinds.REVISION, *key, status)
            digest, revision = await self._snapshot(key, revision)
        source = sources.open_copy(digest, self._copies, objects.annotations_of(revision))
        spec = specifying.spec_of(
            revision, source, self._store, self._environ, self._configs.scaling().progress_deadline
        )
        gate = self._gates.ensure(key, spec.limits, specifying.hold_of(revision))
        gate.recover()
        replicas = Replicas(
            spec,
            self._launcher,
            gate,
            self._pods,
            self._tasks,
            self.placing.machine,
            changed=lambda: self._replicas_changed(key),
            short=lambda: self.placing.wanting(key),
        )
        autoscaler = self._store.get(kinds.POD_AUTOSCALER, *key)
        made = UtilizationScaler if scaling.class_name == CLASS_HPA else Scaler
        scaler = made(
            key,
            scaling,
            replicas,
            gate,
            initialized=is_true(autoscaler, "ScaleTargetInitialized"),
            changed=lambda: self._show(key),
            now=time.monotonic(),
            trace=self._autoscaler.trace,
            room=self.placing,
        )
        running = self._running[key] = Running(spec, gate, replicas, scaler)
        self._launcher.zygotes.renew(spec.preload)
        self._autoscaler.add(scaler)
        self.placing.begin(key)
        if gate.held:
            scaler.poke(time.monotonic())
        return running

    async def _snapshot(self, key: RevisionKey, revision: Object) -> tuple[str, Object]:
        """Copy the function's folder, and note the copy's digest at the revision."""
        folder = sources.folder_of(revision, self._functions)
        async with self._copying:
            digest = await asyncio.to_thread(sources.take, folder, self._copies)
            latest = self._store.get(kinds.REVISION, *key)
            if latest is None or latest["metadata"]["uid"] != revision["metadata"]["uid"]:
                raise BadInput(f"revision {key} was deleted while its folder was copied")
            annotations = objects.annotations_of(latest) | {sources.SNAPSHOT: digest}
            metadata = {**latest["metadata"], "annotations": annotations}
            return digest, self._store.update(kinds.REVISION, {**latest, "metadata": metadata})

    async def _prune(self) -> None:
        """Remove code that no revision has and no replica runs from any more."""
        async with self._copying:
            await asyncio.to_thread(sources.prune, self._copies, self._used())

    def _replicas_changed(self, key: RevisionKey) -> None:
        running = self._running.get(key)
        if running is not None:
            running.scaler.replicas_changed(time.monotonic())
        self.placing.settle()
        self._show(key)

    def _waits_for_room(self, key: RevisionKey, shortage: Shortage) -> None:
        revision = self._store.get(kinds.REVISION, *key)
        if revision is not None:
            self._recorder.record(revision, "Warning", "FailedScheduling", shortage.message)
        self._show(key)

    def _forget(self, key: RevisionKey) -> None:
        running = self._running.pop(key)
        self._autoscaler.drop(key)
        self._gates.drop(key)
        self.placing.forget(key)
        self._leaving[running.spec.uid] = Path(running.spec.source).name.replace("-", ":", 1)
        self._tasks.spawn(self._drained(running), f"stop-{key.name}")

    async def _drained(self, running: Running) -> None:
        await running.replicas.stop(Reason.SCALED_DOWN)
        del self._leaving[running.spec.uid]
        await self._prune()

    # -- status -------------------------------------------------------------------------------------------------

    def _ensure_autoscaler(self, revision: Object, reachable: bool) -> None:
        wanted = objects.pod_autoscaler_for(revision, reachable)
        meta = wanted["metadata"]
        present = self._store.get(kinds.POD_AUTOSCALER, meta["namespace"], meta["name"])
        if present is None:
            self._store.create(kinds.POD_AUTOSCALER, wanted)
            return
        if present["metadata"].get("annotations") != meta["annotations"] or present["spec"] != wanted["spec"]:
            changed = {**present["metadata"], "annotations": meta["annotations"]}
            self._store.update(kinds.POD_AUTOSCALER, {**present, "metadata": changed, "spec": wanted["spec"]})

    def _refused(self, key: RevisionKey, error: Exception) -> None:
        """Nothing can run: say so where people look, and take no traffic."""
        text = str(error)
        log.error("revision.refused revision=%s error=%s: it is looked at again when it changes", key, text)
        revision = self._store.get(kinds.REVISION, *key)
        if revision is not None:
            status = statuses.of_revision(
                revision, statuses.refused(text), rfc3339(), actualReplicas=0, desiredReplicas=0
            )
            self._store.set_status(kinds.REVISION, *key, status)

    def _show(self, key: RevisionKey) -> None:
        """Write the status of a revision and of its PodAutoscaler from what is true now."""
        running = self._running.get(key)
        revision = self._store.get(kinds.REVISION, *key)
        if running is None or revision is None or revision["metadata"]["uid"] != running.spec.uid:
            return
        running.replicas.settle()
        scale, actual, now = running.scaler.scale, running.replicas.ready, rfc3339()
        counts = {"actualReplicas": actual} | ({"desiredReplicas": scale.desired} if scale.desired >= 0 else {})
        conditions = statuses.running(scale, actual, running.replicas.failure, self.placing.shortage(key))
        self._store.set_status(kinds.REVISION, *key, statuses.of_revision(revision, conditions, now, **counts))
        autoscaler = self._store.get(kinds.POD_AUTOSCALER, *key)
        if autoscaler is not None:
            self._store.set_status(kinds.POD_AUTOSCALER, *key, statuses.of_autoscaler(autoscaler, scale, actual, now))
