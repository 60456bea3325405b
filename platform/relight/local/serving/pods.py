"""Replicas as Pod objects, and what is kept of each: its log file, the phases of its cold start.

A Pod stands for a process, so it stays, marked as terminating, until its process is gone: a finalizer keeps it. Whoever
deletes a Pod deletes the replica (``Revisions`` watches that), and sees it drain.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping

from relight.base.errors import BadInput, NotFound, RelightError
from relight.local.kube import kinds
from relight.local.kube.handling import LogOptions
from relight.local.kube.store import ObjectStore
from relight.local.serving import objects, podlogs
from relight.local.serving.coldstarts import ColdStart, ColdStarts
from relight.local.serving.exits import Exits
from relight.local.serving.launching import Launcher
from relight.local.serving.objects import rfc3339
from relight.local.serving.replica import Replica, State
from relight.local.serving.types import RevisionKey, RevisionSpec

log = logging.getLogger("relight.local.serving")

LOGS_KEPT = 10
"""Log files of ended replicas that are kept per revision, the newest ones."""


class Pods:
    """Shows replicas as Pods. Told of every move; what it writes is never needed for a request, so it never raises."""

    def __init__(self, store: ObjectStore, cold_starts: ColdStarts, exits: Exits) -> None:
        self._store = store
        self._cold_starts = cold_starts
        self._exits = exits
        self._replicas: dict[tuple[RevisionKey, str], Replica] = {}
        self.launcher: Launcher | None = None

    def replica_moved(self, spec: RevisionSpec, replica: Replica) -> None:
        try:
            self._show(spec, replica)
        except RelightError as error:
            log.warning("pod.unshown pod=%s error=%s: the replica itself goes on", replica.pod, error)

    def _show(self, spec: RevisionSpec, replica: Replica) -> None:
        namespace = spec.key.namespace
        if replica.state is State.GONE:
            self._replicas.pop((spec.key, replica.pod), None)
            self._remove(namespace, replica.pod)
            self._prune_logs(spec.key)
            self._exits.record(self._store.get(kinds.REVISION, *spec.key), spec.key, replica)
            return
        if replica.state is State.DRAINING:
            self._store.delete(kinds.POD, namespace, replica.pod)  # its finalizer keeps it: it shows as terminating
        self._replicas[spec.key, replica.pod] = replica
        pod = self._store.get(kinds.POD, namespace, replica.pod)
        if pod is None:
            revision = self._store.get(kinds.REVISION, *spec.key)
            if revision is None or replica.launched is None or replica.state is State.DRAINING:
                return
            made = objects.pod_for(revision, replica.pod, replica.launched.address.port)
            made["metadata"]["annotations"] = _told(spec, replica)
            pod = self._store.create(kinds.POD, made)
        container = pod["spec"]["containers"][0]["name"]
        started = (pod.get("status") or {}).get("startTime") or rfc3339()
        status = objects.pod_status(container, started, ready=replica.serves)
        self._store.set_status(kinds.POD, namespace, replica.pod, status)

    def first_answer(self, key: RevisionKey, pod: str, total: float) -> Mapping[str, float]:
        """The first answer since a revision was woken, ``total`` seconds after the request's arrival: now all phases
        of the cold start are known. They are returned, and recorded once the answer is on its way."""
        now = time.monotonic()
        replica = self._replicas.get((key, pod))
        revision = self._store.get(kinds.REVISION, *key)
        if revision is None or replica is None or replica.ready is None or replica.launched is None:
            return {}
        decided, own = replica.launched.decided, replica.ready.phases
        arrived = now - total
        if decided < arrived:  # it was starting already, for another reason: no request waited for all of it
            return {}
        phases = {"hold": decided - arrived, **own, "first_answer": now - decided - sum(own.values())}
        asyncio.get_running_loop().call_soon(self._cold_starts.record, revision, ColdStart(pod, phases, total))
        return phases

    def _remove(self, namespace: str, name: str) -> None:
        pod = self._store.get(kinds.POD, namespace, name)
        if pod is not None:
            metadata = {key: value for key, value in pod["metadata"].items() if key != "finalizers"}
            self._store.update(kinds.POD, {**pod, "metadata": metadata})
            self._store.delete(kinds.POD, namespace, name)

    def forget_old(self) -> None:
        """Remove the Pods of a platform that ended without removing them: their processes drained by themselves."""
        for pod in self._store.list(kinds.POD)[0]:
            self._remove(pod["metadata"]["namespace"], pod["metadata"]["name"])

    async def note_logs(self) -> None:
        """Note once a second which logs have grown, until cancelled."""
        growth = podlogs.Growth()
        while True:
            if self.launcher is not None:
                growth.note([self.launcher.log_path(key.namespace, pod) for key, pod in self._replicas])
            await asyncio.sleep(podlogs.NOTED_EVERY)

    def read_log(self, namespace: str, pod: str, options: LogOptions) -> AsyncIterator[bytes]:
        """The log of a replica that runs, or ended lately; followed until it ends.

        NotFound where there is no such replica. BadInput for a container that it has not, and for what ran before in
        the same pod: a replica that ends is never started again, another one takes its place.
        """
        path = self.launcher.log_path(namespace, pod) if self.launcher else None
        if path is None or "/" in pod or not path.is_file():
            raise NotFound(f'pods "{pod}" not found')
        shown = self._store.get(kinds.POD, namespace, pod)
        names = [one["name"] for one in (shown or {}).get("spec", {}).get("containers", ())]
        if options.container and names and options.container not in names:
            raise BadInput(f"container {options.container} is not valid for pod {pod}")
        if options.previous:
            container = options.container or (names[0] if names else "user-container")
            raise BadInput(f'previous terminated container "{container}" in pod "{pod}" not found')
        return podlogs.read(path, options, lambda: self._runs(namespace, pod))

    def _runs(self, namespace: str, pod: str) -> bool:
        return any(name == pod and key.namespace == namespace for key, name in self._replicas)

    def _prune_logs(self, key: RevisionKey) -> None:
        if self.launcher is None:
            return
        running = {pod for owner, pod in self._replicas if owner == key}
        folder = self.launcher.log_path(key.namespace, "x").parent
        files = [path for path in folder.glob(f"{key.name}-deployment-*.log") if path.stem not in running]
        for path in sorted(files, key=lambda one: one.stat().st_mtime)[:-LOGS_KEPT]:
            path.unlink(missing_ok=True)
            podlogs.notes_of(path).unlink(missing_ok=True)


def _told(spec: RevisionSpec, replica: Replica) -> dict[str, str]:
    """Annotations of a Pod: how its limits are kept, and which GPUs are its own."""
    found: dict[str, str] = {}
    if spec.use and replica.launched is not None:
        found[objects.LIMITS] = replica.launched.group.kind
    if replica.grant is not None and replica.grant.devices:
        found[objects.DEVICES] = ",".join(replica.grant.devices)
    return found
