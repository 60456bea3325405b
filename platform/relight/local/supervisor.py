"""The platform of one machine: everything composed, started and stopped in order. No logic of its own."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
from pathlib import Path

from prometheus_client import CollectorRegistry

from relight.base.errors import RelightError
from relight.base.settings import Settings
from relight.base.tasks import Tasks
from relight.local.backing import Backing
from relight.local.eventing.controller import Eventing
from relight.local.eventing.log import Limits
from relight.local.kube.api import ApiServer
from relight.local.kube.store import ObjectStore
from relight.local.lock import FolderLock
from relight.local.recording import Recorder
from relight.local.serving.serving import Serving
from relight.net import kubeconfig, tls
from relight.net.listener import bind
from relight.proc.orphans import become_subreaper

log = logging.getLogger("relight.local")


class Platform:
    """``start``, then ``failed`` or a signal, then ``stop``."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._home = settings.home
        self._lock = FolderLock(settings.home.lock)
        self._failed = asyncio.Event()
        self._tasks = Tasks("platform", on_failure=lambda name, error: self._failed.set())
        self._registry = CollectorRegistry()
        self._store: ObjectStore | None = None
        self._backing: Backing | None = None
        self._serving: Serving | None = None
        self._eventing: Eventing | None = None
        self._api: ApiServer | None = None
        self._addresses: dict[str, str] = {}

    async def start(self) -> None:
        """All listeners are bound before anything runs, so that a taken port leaves nothing half-started."""
        settings, home = self._settings, self._home
        self._lock.acquire()
        functions = bind(settings.host, settings.functions_port, setting="RELIGHT_FUNCTIONS_PORT")
        become_subreaper()
        base = f"http://{settings.host}:{functions.getsockname()[1]}"
        self._store = ObjectStore.open(home.objects)
        recorder = Recorder(self._store)
        self._backing = Backing(home.services, home.logs)
        self._serving = Serving(settings, self._store, self._backing, recorder, self._registry, self._tasks, base)
        pki = tls.ensure(home.pki)
        limits = Limits(settings.dead_letters, settings.dead_letter_days * 86400.0, settings.event_history)
        self._eventing = Eventing(
            self._store,
            home.events,
            strict=settings.strict,
            limits=limits,
            token=pki.token(),
            schemas=settings.schemas,
        )
        broker_port = await self._eventing.start(settings.host, settings.broker_port)
        await self._serving.start(functions)
        self._api = ApiServer(self._store, pki, pod_logs=self._serving.pods.read_log)
        api_port = await self._api.start(settings.host, settings.api_port)
        self._addresses = {
            "api": f"https://{settings.host}:{api_port}",
            "functions": base,
            "broker": f"http://{settings.host}:{broker_port}",
        }
        # What is here now stays: it need not be walked through again at each collection, with every request waiting.
        gc.freeze()
        kubeconfig.write(home.kubeconfig, self._addresses["api"], pki.ca, pki.token())
        _write(home.status, self.status())
        log.info("platform.ready %s", " ".join(f"{name}={address}" for name, address in self._addresses.items()))

    def status(self) -> dict[str, object]:
        """What other commands need to find this platform."""
        return {
            "pid": os.getpid(),
            "start_time": int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]),
            **self._addresses,
            "kubeconfig": str(self._home.kubeconfig),
            "repository": self._settings.repository,
            "resources": dict(self._serving.machine.capacity.amounts) if self._serving else {},
            "limits": self._serving.limiter.kind if self._serving else "",
        }

    async def failed(self) -> None:
        """Returns when a part that must run has ended by an error (which is in the log)."""
        await self._failed.wait()

    async def stop(self) -> None:
        """From the doors inward; each part even if another fails. What another platform has is left alone."""
        if not self._lock.held:
            return
        self._home.status.unlink(missing_ok=True)
        for part in (self._api, self._eventing, self._serving, self._backing, self._tasks):
            if part is None:
                continue
            try:
                await part.stop()
            except RelightError as error:
                log.error("platform.stop part=%s error=%s: the others are stopped too", type(part).__name__, error)
        if self._store is not None:
            self._store.close()
        self._lock.release()


def _write(path: Path, value: dict[str, object]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value))
    partial.replace(path)
