"""Knative Serving on this machine, put together: controllers, revisions, autoscaler, activator, router."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from relight.base.settings import Settings
from relight.base.tasks import Tasks
from relight.local.kube.configs import Configs
from relight.local.kube.store import ObjectStore
from relight.local.recording import Recorder
from relight.local.serving.activator import Gates
from relight.local.serving.autoscaling import Autoscaler
from relight.local.serving.coldstarts import ColdStarts
from relight.local.serving.controllers import Controllers
from relight.local.serving.exits import Exits
from relight.local.serving.launching import BackingServices, Launcher
from relight.local.serving.machine import Machine, detect
from relight.local.serving.pods import Pods
from relight.local.serving.revisions import Revisions
from relight.local.serving.router import Router
from relight.local.serving.routes import Routes
from relight.local.serving.tracing import DecisionLog
from relight.local.serving.types import RevisionKey
from relight.proc.limiting import Limiter
from relight.wire.http import Response


class Urls:
    """How functions are called: the path form, which every resolver on this machine can follow."""

    def __init__(self, base: str) -> None:
        self._base = base

    def url(self, namespace: str, name: str, tag: str | None = None) -> str:
        return f"{self._base}/{namespace}/{tag + '-' if tag else ''}{name}"


class Serving:
    """``start`` once, ``stop`` once; between them everything follows from the objects in the store."""

    def __init__(
        self,
        settings: Settings,
        store: ObjectStore,
        backing: BackingServices,
        recorder: Recorder,
        registry: CollectorRegistry,
        tasks: Tasks,
        base_url: str,
    ) -> None:
        self._tasks = tasks
        self.pods = Pods(store, ColdStarts(registry, recorder), Exits(registry, recorder))
        self.limiter = Limiter.find(groups=settings.limits == "auto")
        self.machine = Machine(detect(settings.environ, settings.resources))
        self._launcher = Launcher(settings.environ, settings.home.logs / "pods", backing, self.limiter)
        self.pods.launcher = self._launcher
        configs = Configs(store)
        self.routes = Routes(lambda: configs.features().get("tag-header-based-routing") == "enabled")
        self.urls = Urls(base_url)
        self.gates = Gates(self._wake)
        self._trace = DecisionLog(settings.trace_decisions) if settings.trace_decisions else None
        self._autoscaler = Autoscaler(self._trace.write if self._trace else None)
        self._controllers = Controllers(
            store,
            self.routes,
            self.urls,
            tasks,
            revision_changed=lambda *key: self._revisions.mark(*key),
            at_once=lambda key: self._revisions.placing.displaces(key),
        )
        self._revisions = Revisions(
            store,
            self.gates,
            self._launcher,
            self.pods,
            self._autoscaler,
            tasks,
            functions=settings.functions,
            copies=settings.home.sources,
            environ=function_environ(settings, base_url),
            reachable=self._controllers.reachable,
            following=self._controllers.following,
            machine=self.machine,
            recorder=recorder,
        )
        self.router = Router(
            self.routes,
            self.gates,
            registry=registry,
            pages={
                b"/metrics": lambda: Response(200, (("content-type", CONTENT_TYPE_LATEST),), generate_latest(registry))
            },
            on_replica_error=self._revisions.refused,
            on_first_answer=self.pods.first_answer,
        )

    def _wake(self, key: RevisionKey) -> None:
        self._revisions.wake(key)

    async def start(self, listener: socket.socket) -> None:
        if self._trace is not None:
            self._trace.open()
        self.pods.forget_old()
        self._launcher.zygotes.prepare(())
        self._tasks.spawn(self._launcher.zygotes.watch(), "watch-zygotes")
        self._revisions.restore(self._controllers.restore())
        self._revisions.start()
        self._controllers.start()
        await self.router.start(listener)

    async def stop(self) -> None:
        """From the door inward: no new requests, those in flight end, replicas drain, zygotes go."""
        await self.router.stop()
        await self._revisions.stop()
        await self._launcher.stop()
        if self._trace is not None:
            self._trace.close()


def function_environ(settings: Settings, base_url: str) -> Mapping[str, str]:
    """What every function of this machine is told; its own env wins."""
    return {
        "RELIGHT_REPOSITORY": settings.repository,
        "RELIGHT_CACHE": str(settings.cache),
        "RELIGHT_LOG_LEVEL": settings.log_level,
        # Names of a cluster (NAME.NAMESPACE.svc.cluster.local) and *.localhost lead here; nobody's resolver knows them.
        "RELIGHT_ROUTER": base_url.removeprefix("http://"),
    }
