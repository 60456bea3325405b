"""Replicas as Pod objects, and what is kept of each: its log file, the phases of its cold start."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

from relight.base.errors import NotFound, RelightError
from relight.local.kube import kinds
from relight.local.kube.handling import LogOptions
from relight.local.kube.store import ObjectStore
from relight.local.serving import objects
from relight.local.serving.coldstarts import ColdStart, ColdStarts
from relight.local.serving.controllers import rfc3339
from relight.local.serving.launching import Launcher
from relight.local.serving.replicas import Replica, State
from relight.local.serving.types import RevisionKey, RevisionSpec

log = logging.getLogger("relight.local.serving")

FOLLOW_BYTES = 64 * 1024
FOLLOW_SECONDS = 0.2
LOGS_KEPT = 10
"""Log files of ended replicas that are kept per revision, the newest ones."""


class Pods:
    """Shows replicas as Pods. Told of every move; what it writes is never needed for a request, so it never raises."""

    def __init__(self, store: ObjectStore, cold_starts: ColdStarts) -> None:
        self._store = store
        self._cold_starts = cold_starts
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
            self._store.delete(kinds.POD, namespace, replica.pod)
            self._prune_logs(spec.key)
            return
        self._replicas[spec.key, replica.pod] = replica
        pod = self._store.get(kinds.POD, namespace, replica.pod)
        if pod is None:
            revision = self._store.get(kinds.REVISION, *spec.key)
            if revision is None or replica.launched is None:
                return
            pod = self._store.create(kinds.POD, objects.pod_for(revision, replica.pod, replica.launched.address.port))
        container = pod["spec"]["containers"][0]["name"]
        started = (pod.get("status") or {}).get("startTime") or rfc3339()
        status = objects.pod_status(
            "Running" if replica.state is not State.STARTING else "Pending",
            container,
            started,
            ready=replica.state is State.READY,
        )
        self._store.set_status(kinds.POD, namespace, replica.pod, status)

    def first_answer(self, key: RevisionKey, pod: str, total: float) -> None:
        """The first answer since a revision was woken, ``total`` seconds after the request's arrival: now all phases
        of the cold start are known."""
        now = time.monotonic()
        replica = self._replicas.get((key, pod))
        revision = self._store.get(kinds.REVISION, *key)
        if revision is None or replica is None or replica.ready is None or replica.launched is None:
            return
        decided, own = replica.launched.decided, replica.ready.phases
        arrived = now - total
        if decided < arrived:  # it was starting already, for another reason: no request waited for all of it
            return
        phases = {"hold": decided - arrived, **own, "first_answer": now - decided - sum(own.values())}
        self._cold_starts.record(revision, ColdStart(pod, phases, total))

    def forget_old(self) -> None:
        """Remove the Pods of a platform that ended without removing them: their processes drained by themselves."""
        for pod in self._store.list(kinds.POD)[0]:
            self._store.delete(kinds.POD, pod["metadata"]["namespace"], pod["metadata"]["name"])

    async def read_log(self, namespace: str, pod: str, options: LogOptions) -> AsyncIterator[bytes]:
        """The log of a replica that runs, or ended lately; followed until it ends. NotFound otherwise."""
        path = self.launcher.log_path(namespace, pod) if self.launcher else None
        if path is None or "/" in pod or not path.is_file():
            raise NotFound(f'pods "{pod}" not found')
        with path.open("rb") as file:
            yield _tail(file.read(), options.tail)
            while options.follow:
                ended = not any(name == pod and key.namespace == namespace for key, name in self._replicas)
                if part := file.read(FOLLOW_BYTES):
                    yield part
                elif ended:
                    return
                else:
                    await asyncio.sleep(FOLLOW_SECONDS)  # a file that grows cannot be awaited

    def _prune_logs(self, key: RevisionKey) -> None:
        if self.launcher is None:
            return
        running = {pod for owner, pod in self._replicas if owner == key}
        folder = self.launcher.log_path(key.namespace, "x").parent
        files = [path for path in folder.glob(f"{key.name}-deployment-*.log") if path.stem not in running]
        for path in sorted(files, key=lambda one: one.stat().st_mtime)[:-LOGS_KEPT]:
            path.unlink(missing_ok=True)


def _tail(content: bytes, lines: int | None) -> bytes:
    if lines is None:
        return content
    return b"".join(content.splitlines(keepends=True)[-lines:]) if lines > 0 else b""
