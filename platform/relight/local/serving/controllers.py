"""Service and Configuration: Knative's reconcilers, level by level. (Routes are in ``routing``.)

Each looks at one object's present state, makes what follows from it and writes its status; a change of one marks those
that depend on it. Reasons and messages are Knative's own, so that tools and people that know them need not learn anew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from relight.base.errors import Conflict, Overloaded
from relight.base.tasks import Tasks
from relight.decide import retention
from relight.decide.retention import Candidate
from relight.local.conditions import Condition, find, is_true, render, summary
from relight.local.kube import configs, kinds
from relight.local.kube.configs import Configs
from relight.local.kube.kinds import Kind
from relight.local.kube.store import ObjectStore
from relight.local.reconciling import Queue
from relight.local.serving import objects
from relight.local.serving.objects import rfc3339
from relight.local.serving.routing import Addresses, RouteTable, Routing
from relight.local.serving.types import RevisionKey

log = logging.getLogger("relight.local.serving")

Object = dict[str, Any]
OUT_OF_DATE = "The {} is still working to reflect the latest desired specification."
NOT_MIGRATED = "Traffic is not yet migrated to the latest revision."

Key = tuple[str, str, str]
"""Kind's name, namespace, name."""


class Controllers:
    """Watches the serving kinds and reconciles them, one at a time, on the event loop."""

    def __init__(
        self,
        store: ObjectStore,
        routes: RouteTable,
        addresses: Addresses,
        tasks: Tasks,
        *,
        revision_changed: Callable[[str, str], None],
        at_once: Callable[[RevisionKey], bool],
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._revision_changed = revision_changed
        self._configs = Configs(store)
        self._spoken_of: dict[tuple[str, str], set[tuple[str, str]]] = {}
        """By route: the revisions and configurations in its lines of traffic."""
        self._routes_by: dict[tuple[str, str, str], set[str]] = {}
        """By namespace, revision and configuration: the routes that have such a line."""
        self._routing = Routing(
            store,
            routes,
            addresses,
            revision_changed=revision_changed,
            look_again=lambda *key: self.queue.mark((kinds.ROUTE.kind, *key)),
            at_once=at_once,
        )
        self.queue: Queue[Key] = Queue("serving", self._look, tasks)

    def restore(self) -> list[RevisionKey]:
        """The traffic as it was when the platform ended; the revisions that get some."""
        return self._routing.restore()

    def start(self) -> None:
        self._tasks.spawn(self.queue.run(), "reconcile")
        for kind in (kinds.SERVICE, kinds.CONFIGURATION, kinds.REVISION, kinds.ROUTE):
            self._tasks.spawn(self._watch(kind), f"watch-{kind.plural}")
        self._tasks.spawn(self._watch_configs(), "watch-configs")

    def reachable(self, key: RevisionKey) -> bool:
        """Whether any route sends traffic to a revision (Knative's reachability)."""
        return self._routing.reachable(key)

    def following(self, key: RevisionKey) -> bool:
        """Whether a revision gets its traffic for being the latest, until a newer one is ready."""
        return self._routing.following(key)

    async def _watch(self, kind: Kind) -> None:
        # A watch that was too slow is closed by the store: it starts again from a list, and nothing is missed for long.
        while True:
            try:
                async for change in self._store.watch(kind):
                    self._changed(kind, change.object)
            except Overloaded as error:
                log.warning("watch.restarted kind=%s error=%s", kind.plural, error)

    async def _watch_configs(self) -> None:
        """Retention and rollout may have changed: all configurations and routes are looked at."""
        by_config = {configs.GC: kinds.CONFIGURATION, configs.NETWORK: kinds.ROUTE}
        while True:
            try:
                async for change in self._store.watch(kinds.CONFIG_MAP, configs.NAMESPACE):
                    name = change.object["metadata"]["name"]
                    if name in by_config:
                        for obj in self._store.list(by_config[name])[0]:
                            self.queue.mark((obj["kind"], obj["metadata"]["namespace"], obj["metadata"]["name"]))
            except Overloaded as error:
                log.warning("watch.restarted kind=configmaps error=%s", error)

    def _changed(self, kind: Kind, obj: Mapping[str, Any]) -> None:
        meta = obj["metadata"]
        namespace, name, labels = meta["namespace"], meta["name"], meta.get("labels") or {}
        self.queue.mark((kind.kind, namespace, name))
        if kind is kinds.REVISION:
            self._revision_changed(namespace, name)
            if objects.CONFIGURATION in labels:
                self.queue.mark((kinds.CONFIGURATION.kind, namespace, labels[objects.CONFIGURATION]))
                self._mark_routes(namespace, "", labels[objects.CONFIGURATION])
            self._mark_routes(namespace, name, "")
        elif kind is kinds.CONFIGURATION:
            self._mark_routes(namespace, "", name)
        elif kind is kinds.ROUTE:
            self._note_route(namespace, name, obj)
        if kind in (kinds.CONFIGURATION, kinds.ROUTE) and objects.SERVICE in labels:
            self.queue.mark((kinds.SERVICE.kind, namespace, labels[objects.SERVICE]))

    def _note_route(self, namespace: str, name: str, route: Mapping[str, Any]) -> None:
        """Remember what a route speaks of, so that a change of that finds it without asking all routes."""
        for one in self._spoken_of.pop((namespace, name), ()):
            self._routes_by[namespace, *one].discard(name)
        if self._store.get(kinds.ROUTE, namespace, name) is None:
            return
        lines = route["spec"].get("traffic") or ()
        named = {(str(line.get("revisionName") or ""), str(line.get("configurationName") or "")) for line in lines}
        for one in named:
            self._routes_by.setdefault((namespace, *one), set()).add(name)
        self._spoken_of[namespace, name] = named

    def _mark_routes(self, namespace: str, revision: str, configuration: str) -> None:
        names = set(self._routes_by.get((namespace, revision, configuration), ()))
        if configuration and self._store.get(kinds.ROUTE, namespace, configuration) is not None:
            names.add(configuration)  # a Service's own, which may be too new to have been noted
        for name in names:
            self.queue.mark((kinds.ROUTE.kind, namespace, name))

    async def _look(self, key: Key) -> None:
        kind, namespace, name = key
        if kind == kinds.SERVICE.kind:
            self._look_at_service(namespace, name)
        elif kind == kinds.CONFIGURATION.kind:
            self._look_at_configuration(namespace, name)
        elif kind == kinds.ROUTE.kind:
            self._routing.look(namespace, name)

    # -- Service ------------------------------------------------------------------------------------------------

    def _look_at_service(self, namespace: str, name: str) -> None:
        service = self._store.get(kinds.SERVICE, namespace, name)
        if service is None or service["metadata"].get("deletionTimestamp"):
            return
        configuration = self._ensure(kinds.CONFIGURATION, objects.configuration_for(service))
        route = self._ensure(kinds.ROUTE, objects.route_for(service))
        routes = _mirror("RoutesReady", route, "Route")
        if routes.status == "True" and not _migrated(route, configuration):
            routes = Condition("RoutesReady", "Unknown", "TrafficNotMigrated", NOT_MIGRATED)
        # Where both decide alike, Ready takes the Route's word.
        conditions = [routes, _mirror("ConfigurationsReady", configuration, "Configuration")]
        status: Object = {"observedGeneration": service["metadata"]["generation"]}
        for field in ("latestCreatedRevisionName", "latestReadyRevisionName"):
            if field in (configuration.get("status") or {}):
                status[field] = configuration["status"][field]
        for field in ("url", "address", "traffic"):
            if field in (route.get("status") or {}):
                status[field] = route["status"][field]
        self._write_status(kinds.SERVICE, service, status, conditions)

    # -- Configuration ------------------------------------------------------------------------------------------

    def _look_at_configuration(self, namespace: str, name: str) -> None:
        configuration = self._store.get(kinds.CONFIGURATION, namespace, name)
        if configuration is None or configuration["metadata"].get("deletionTimestamp"):
            return
        generation = configuration["metadata"]["generation"]
        revisions = self._store.owned(configuration["metadata"]["uid"], kinds.REVISION)
        by_generation = {int(objects.labels_of(one).get(objects.GENERATION, 0)): one for one in revisions}
        latest = by_generation.get(generation)
        status: Object = {"observedGeneration": generation}
        before = configuration.get("status") or {}
        if latest is None:
            wanted = objects.revision_for(configuration)
            try:
                latest = self._store.create(kinds.REVISION, wanted)
            except Conflict:
                taken = f'revision name "{wanted["metadata"]["name"]}" is taken: a named template needs a new name'
                failed = Condition("Ready", "False", "RevisionFailed", f"{taken} for each change")
                for field in ("latestCreatedRevisionName", "latestReadyRevisionName"):
                    if field in before:
                        status[field] = before[field]
                self._write_status(kinds.CONFIGURATION, configuration, status, [failed], summed=False)
                return
        status["latestCreatedRevisionName"] = latest["metadata"]["name"]
        ready = _latest_ready(by_generation, before.get("latestReadyRevisionName"))
        if ready is not None:
            status["latestReadyRevisionName"] = ready
        condition = find(latest, "Ready") or Condition("Ready", "Unknown")
        if condition.status == "False":
            message = f'Revision "{latest["metadata"]["name"]}" failed with message: {condition.message}.'
            condition = Condition("Ready", "False", "RevisionFailed", message)
        else:
            condition = Condition("Ready", condition.status)
        self._write_status(kinds.CONFIGURATION, configuration, status, [condition], summed=False)
        self._collect(status.get("latestReadyRevisionName"), latest, revisions)

    def _collect(self, latest_ready: str | None, latest: Object, revisions: list[Object]) -> None:
        """Delete old revisions as ``config-gc`` says; their Pods and PodAutoscalers go along, and their code."""
        candidates = []
        for one in revisions:
            meta, annotations = one["metadata"], objects.annotations_of(one)
            created = _seconds(meta["creationTimestamp"])
            kept = meta["name"] in (latest_ready, latest["metadata"]["name"])
            kept = kept or annotations.get(objects.NO_GC, "").lower() == "true"
            active = kept or objects.labels_of(one).get(objects.ROUTING_STATE) != "reserve"
            last = _seconds(annotations.get(objects.ROUTING_STATE_MODIFIED, meta["creationTimestamp"]))
            candidates.append(Candidate(meta["name"], created, last, active))
        namespace = latest["metadata"]["namespace"]
        for name in retention.collect(self._configs.retention(), candidates, time.time()):
            log.info("revision.collected revision=%s/%s", namespace, name)
            self._store.delete(kinds.REVISION, namespace, name)

    # -- common -------------------------------------------------------------------------------------------------

    def _ensure(self, kind: Kind, wanted: Object) -> Object:
        """The object as it is after making or mending it; its spec, labels and annotations become the wanted ones."""
        meta = wanted["metadata"]
        present = self._store.get(kind, meta["namespace"], meta["name"])
        if present is None:
            return self._store.create(kind, wanted)
        mended = {
            **present,
            "spec": wanted["spec"],
            "metadata": {
                **present["metadata"],
                "labels": {**objects.labels_of(present), **meta["labels"]},
                "annotations": {**objects.annotations_of(present), **meta["annotations"]},
            },
        }
        return self._store.update(kind, mended)

    def _write_status(
        self, kind: Kind, obj: Object, status: Object, conditions: list[Condition], *, summed: bool = True
    ) -> None:
        meta = obj["metadata"]
        if summed:
            conditions = [*conditions, summary(conditions)]
        before = (obj.get("status") or {}).get("conditions") or ()
        status = {**status, "conditions": render(conditions, before, rfc3339())}
        self._store.set_status(kind, meta["namespace"], meta["name"], status)


def _mirror(name: str, child: Mapping[str, Any], kind: str) -> Condition:
    """A child's Ready as a condition of its parent; out of date while the child has not seen its own spec."""
    ready = find(child, "Ready")
    observed = (child.get("status") or {}).get("observedGeneration")
    if ready is None or observed != child["metadata"]["generation"]:
        return Condition(name, "Unknown", "OutOfDate", OUT_OF_DATE.format(kind))
    return Condition(name, ready.status, ready.reason, ready.message)


def _migrated(route: Mapping[str, Any], configuration: Mapping[str, Any]) -> bool:
    """Whether a route's traffic is where its spec and the configuration's latest ready revision want it."""
    latest = (configuration.get("status") or {}).get("latestReadyRevisionName")
    wanted = [
        (latest if line.get("configurationName") else line.get("revisionName"), line.get("percent") or 0)
        for line in route["spec"].get("traffic") or ()
    ]
    lines = (route.get("status") or {}).get("traffic") or ()
    return wanted == [(line["revisionName"], line.get("percent") or 0) for line in lines]


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def _latest_ready(by_generation: Mapping[int, Mapping[str, Any]], before: str | None) -> str | None:
    """The newest revision that is ready. It never goes back: one that was ready and fails later keeps its traffic,
    for the older one may be what was replaced on purpose."""
    floor = max((at for at, one in by_generation.items() if one["metadata"]["name"] == before), default=-1)
    ready = [at for at, one in by_generation.items() if is_true(one) and at >= floor]
    if ready:
        return str(by_generation[max(ready)]["metadata"]["name"])
    return before if floor >= 0 else None
