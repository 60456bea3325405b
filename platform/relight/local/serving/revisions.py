"""The Revision controller: from an object to a gate, replicas and an autoscaler, and back to its status.

A Revision's spec never changes, but its annotations may: its autoscaling annotations are copied to the PodAutoscaler
and count from that moment, without a new revision.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relight.base.errors import BadInput, RelightError
from relight.base.tasks import Tasks
from relight.base.units import parse_duration
from relight.decide.defaults import ClusterDefaults
from relight.decide.last_step import Activity
from relight.decide.scaling import RevisionScaling
from relight.local.conditions import Condition, is_true, render, summary
from relight.local.kube import kinds
from relight.local.kube.store import ObjectStore
from relight.local.reconciling import Queue
from relight.local.serving import objects, sources
from relight.local.serving.activator import Gate, Gates
from relight.local.serving.autoscaling import Autoscaler, Scaler
from relight.local.serving.controllers import rfc3339
from relight.local.serving.launching import Launcher
from relight.local.serving.pods import Pods
from relight.local.serving.replicas import Reason, Replicas
from relight.local.serving.types import RevisionKey, RevisionLimits, RevisionSpec

log = logging.getLogger("relight.local.serving")

Object = dict[str, Any]
BUFFERING = "Requests to the target are being buffered as resources are provisioned."
NO_TRAFFIC = "The target is not receiving traffic."
PROGRESS_DEADLINE = "serving.knative.dev/progress-deadline"


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
        defaults: ClusterDefaults | None = None,
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
        self._defaults = defaults or ClusterDefaults()
        self._running: dict[RevisionKey, Running] = {}
        self.queue: Queue[RevisionKey] = Queue("revisions", self._look, tasks)

    def start(self) -> None:
        used = [
            objects.annotations_of(revision).get(sources.SNAPSHOT, "")
            for revision in self._store.list(kinds.REVISION)[0]
        ]
        sources.prune(self._copies, used)
        self._tasks.spawn(self.queue.run(), "reconcile")
        self._tasks.spawn(self._autoscaler.run(), "autoscaler")

    async def stop(self) -> None:
        """Stop every replica, each drained."""
        await asyncio.gather(*(running.replicas.stop(Reason.SHUT_DOWN) for running in self._running.values()))

    def mark(self, namespace: str, name: str) -> None:
        self.queue.mark(RevisionKey(namespace, name))

    def wake(self, key: RevisionKey) -> None:
        """A request is held and there is no replica."""
        self._autoscaler.poke(key)

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
        if revision is None or revision["metadata"].get("deletionTimestamp"):
            return
        reachable = self._reachable(key)
        self._ensure_autoscaler(revision, reachable)
        try:
            scaling = RevisionScaling.from_annotations(
                objects.annotations_of(revision), revision["spec"].get("containerConcurrency") or 0, self._defaults
            )
            if running is None:
                running = await self._begin(key, revision, scaling)
        except (RelightError, ValueError) as error:
            self._refused(key, revision, error)
            return
        running.scaler.configure(scaling, reachable or not running.scaler.scale.initialized, time.monotonic())
        self._show(key)

    async def _begin(self, key: RevisionKey, revision: Object, scaling: RevisionScaling) -> Running:
        digest = objects.annotations_of(revision).get(sources.SNAPSHOT)
        if digest is None:
            folder = sources.folder_of(revision, self._functions)
            digest = await asyncio.to_thread(sources.take, folder, self._copies)
            latest = self._store.get(kinds.REVISION, *key)
            if latest is None or latest["metadata"]["uid"] != revision["metadata"]["uid"]:
                raise BadInput(f"revision {key} was deleted while its folder was copied")
            annotations = objects.annotations_of(latest) | {sources.SNAPSHOT: digest}
            revision = self._store.update(
                kinds.REVISION, {**latest, "metadata": {**latest["metadata"], "annotations": annotations}}
            )
        source = sources.open_copy(digest, self._copies, objects.annotations_of(revision))
        spec = self._spec(key, revision, source)
        gate = self._gates.ensure(key, spec.limits)
        gate.recover()
        changed = lambda: self._show(key)  # noqa: E731
        replicas = Replicas(spec, self._launcher, gate, self._pods, self._tasks, changed=changed)
        autoscaler = self._store.get(kinds.POD_AUTOSCALER, *key)
        scaler = Scaler(
            key,
            scaling,
            replicas,
            gate,
            initialized=is_true(autoscaler, "ScaleTargetInitialized"),
            changed=changed,
            now=time.monotonic(),
        )
        running = self._running[key] = Running(spec, gate, replicas, scaler)
        self._launcher.prepare(spec.preload)
        self._autoscaler.add(scaler)
        scaler.begin()
        return running

    def _spec(self, key: RevisionKey, revision: Object, source: sources.Source) -> RevisionSpec:
        spec, labels = revision["spec"], objects.labels_of(revision)
        timeout = float(spec.get("timeoutSeconds") or 300)
        container = spec["containers"][0]
        service = labels.get(objects.SERVICE, "")
        configuration = labels.get(objects.CONFIGURATION, "")
        deadline = objects.annotations_of(revision).get(PROGRESS_DEADLINE)
        env = {
            **self._environ,
            **self._values(key.namespace, container),
            "K_SERVICE": service or configuration,
            "K_CONFIGURATION": configuration,
            "K_REVISION": key.name,
            "RELIGHT_NAMESPACE": key.namespace,
        }
        return RevisionSpec(
            key=key,
            uid=revision["metadata"]["uid"],
            service=service,
            configuration=configuration,
            source=str(source.path),
            env=env,
            preload=source.preload,
            backing=source.backing,
            limits=RevisionLimits(
                container_concurrency=int(spec.get("containerConcurrency") or 0),
                timeout=timeout,
                response_start=float(spec.get("responseStartTimeoutSeconds") or timeout),
                idle=float(spec.get("idleTimeoutSeconds") or 0),
                h2c=objects.speaks_h2c(revision),
            ),
            grace=timeout,
            progress_deadline=parse_duration(deadline) if deadline else self._defaults.progress_deadline,
        )

    def _values(self, namespace: str, container: Object) -> dict[str, str]:
        """A container's environment; values may come from ConfigMaps and Secrets."""
        values: dict[str, str] = {}
        for part in container.get("envFrom") or ():
            for kind, field in ((kinds.CONFIG_MAP, "configMapRef"), (kinds.SECRET, "secretRef")):
                if field in part:
                    data = self._data(kind, namespace, part[field])
                    values |= {str(part.get("prefix", "")) + name: value for name, value in data.items()}
        for variable in container.get("env") or ():
            origin = variable.get("valueFrom") or {}
            for kind, field in ((kinds.CONFIG_MAP, "configMapKeyRef"), (kinds.SECRET, "secretKeyRef")):
                if field in origin:
                    data, name = self._data(kind, namespace, origin[field]), origin[field].get("key", "")
                    if name in data:
                        values[variable["name"]] = data[name]
                    elif not origin[field].get("optional"):
                        raise BadInput(
                            f'env {variable["name"]}: {kind.kind} "{origin[field].get("name")}" has no key {name!r}'
                        )
            if not origin:
                values[variable["name"]] = str(variable.get("value") or "")
        return values

    def _data(self, kind: kinds.Kind, namespace: str, reference: Object) -> dict[str, str]:
        found = self._store.get(kind, namespace, str(reference.get("name")))
        if found is None:
            if reference.get("optional"):
                return {}
            raise BadInput(f'{kind.kind} "{reference.get("name")}" not found in namespace {namespace}')
        data = {str(name): str(value) for name, value in (found.get("data") or {}).items()}
        if kind is kinds.SECRET:
            data = {name: base64.b64decode(value).decode() for name, value in data.items()}
        return data

    def _forget(self, key: RevisionKey) -> None:
        running = self._running.pop(key)
        self._autoscaler.drop(key)
        self._gates.drop(key)
        self._tasks.spawn(running.replicas.stop(Reason.SCALED_DOWN), f"stop-{key.name}")

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

    def _refused(self, key: RevisionKey, revision: Object, error: Exception) -> None:
        """Nothing can run: say so where people look, and take no traffic."""
        text = str(error)
        log.error("revision.refused revision=%s error=%s: it is looked at again when it changes", key, text)
        conditions = [
            Condition("ContainerHealthy", "False", "ContainerMissing", text),
            Condition("ResourcesAvailable", "Unknown"),
            Condition("Active", "False", "NoTraffic", NO_TRAFFIC, info=True),
        ]
        self._write(revision, conditions, desired=0, actual=0)

    def _show(self, key: RevisionKey) -> None:
        """Write the status of a revision and of its PodAutoscaler from what is true now."""
        running = self._running.get(key)
        revision = self._store.get(kinds.REVISION, *key)
        if running is None or revision is None or revision["metadata"]["uid"] != running.spec.uid:
            return
        running.replicas.settle()
        scale, actual, failure = running.scaler.scale, running.replicas.ready, running.replicas.failure
        active = {
            Activity.ACTIVE: Condition("Active", "True", info=True),
            Activity.ACTIVATING: Condition("Active", "Unknown", "Queued", BUFFERING, info=True),
            Activity.INACTIVE: Condition("Active", "False", "NoTraffic", NO_TRAFFIC, info=True),
        }[scale.activity]
        conditions = [active]
        if failure is not None and not actual:
            message = f"Container failed with: {failure.message}"
            conditions += [
                Condition("ContainerHealthy", "False", failure.reason.value, message),
                Condition("ResourcesAvailable", "True" if scale.initialized else "Unknown"),
            ]
        elif scale.initialized or actual:
            conditions += [Condition("ContainerHealthy", "True"), Condition("ResourcesAvailable", "True")]
        else:
            conditions += [
                Condition("ContainerHealthy", "Unknown", "Deploying"),
                Condition("ResourcesAvailable", "Unknown", "Deploying"),
            ]
        self._write(revision, conditions, desired=max(scale.desired, running.replicas.want, 0), actual=actual)
        self._write_autoscaler(key, scale.initialized, active, desired=scale.desired, actual=actual)

    def _write(self, revision: Object, conditions: list[Condition], *, desired: int, actual: int) -> None:
        before = (revision.get("status") or {}).get("conditions") or ()
        container = revision["spec"]["containers"][0]
        status = {
            "actualReplicas": actual,
            "desiredReplicas": desired,
            "observedGeneration": revision["metadata"]["generation"],
            "conditions": render([*conditions, summary(conditions)], before, rfc3339()),
            "containerStatuses": [{"name": container.get("name") or "user-container"}],
        }
        meta = revision["metadata"]
        self._store.set_status(kinds.REVISION, meta["namespace"], meta["name"], status)

    def _write_autoscaler(
        self, key: RevisionKey, initialized: bool, active: Condition, *, desired: int, actual: int
    ) -> None:
        present = self._store.get(kinds.POD_AUTOSCALER, *key)
        if present is None:
            return
        active = Condition("Active", active.status, active.reason, active.message)
        serving = Condition("SKSReady", "True") if actual else Condition("SKSReady", "Unknown", "NotReady")
        ready = (
            active if active.status != "True" else Condition("Ready", serving.status, serving.reason, serving.message)
        )
        conditions = [
            active,
            Condition("Ready", ready.status, ready.reason, ready.message),
            serving,
            Condition("ScaleTargetInitialized", "True" if initialized else "Unknown"),
        ]
        status = {
            "actualScale": actual,
            "desiredScale": desired,
            "observedGeneration": present["metadata"]["generation"],
            "serviceName": key.name,
            "metricsServiceName": f"{key.name}-private",
            "conditions": render(conditions, (present.get("status") or {}).get("conditions") or (), rfc3339()),
        }
        self._store.set_status(kinds.POD_AUTOSCALER, *key, status)
