"""Service, Configuration and Route: Knative's reconcilers, level by level.

Each looks at one object's present state, makes what follows from it and writes its status; a change of one marks those
that depend on it. Reasons and messages are Knative's own, so that tools and people that know them need not learn anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from relight.base.errors import Conflict
from relight.base.tasks import Tasks
from relight.local.conditions import Condition, find, is_true, render, summary
from relight.local.kube import kinds
from relight.local.kube.kinds import Kind
from relight.local.kube.store import ObjectStore
from relight.local.reconciling import Queue
from relight.local.serving import objects
from relight.local.serving.types import RevisionKey, RouteTarget

Object = dict[str, Any]
OUT_OF_DATE = "The {} is still working to reflect the latest desired specification."
WAITING = 'Configuration "{}" is waiting for a Revision to become ready.'


def rfc3339() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class RouteTable(Protocol):
    """The part of the router's table that the Route controller writes."""

    def set(self, namespace: str, name: str, targets: tuple[RouteTarget, ...]) -> None: ...

    def remove(self, namespace: str, name: str) -> None: ...


class Addresses(Protocol):
    """What a route is called from outside; known once the router listens."""

    def url(self, namespace: str, name: str, tag: str | None = None) -> str: ...


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
    ) -> None:
        self._store = store
        self._routes = routes
        self._addresses = addresses
        self._tasks = tasks
        self._revision_changed = revision_changed
        self._routed: dict[tuple[str, str], frozenset[RevisionKey]] = {}
        self.queue: Queue[Key] = Queue("serving", self._look, tasks)

    def start(self) -> None:
        self._tasks.spawn(self.queue.run(), "reconcile")
        for kind in (kinds.SERVICE, kinds.CONFIGURATION, kinds.REVISION, kinds.ROUTE):
            self._tasks.spawn(self._watch(kind), f"watch-{kind.plural}")

    def reachable(self, key: RevisionKey) -> bool:
        """Whether any route sends traffic to a revision (Knative's reachability)."""
        return any(key in keys for keys in self._routed.values())

    async def _watch(self, kind: Kind) -> None:
        # A watch that was too slow is closed by the store: it starts again from a list, and nothing is missed for long.
        while True:
            async for change in self._store.watch(kind):
                self._changed(kind, change.object)

    def _changed(self, kind: Kind, obj: Mapping[str, Any]) -> None:
        meta = obj["metadata"]
        namespace, name, labels = meta["namespace"], meta["name"], meta.get("labels") or {}
        self.queue.mark((kind.kind, namespace, name))
        if kind is kinds.REVISION:
            self._revision_changed(namespace, name)
            if objects.CONFIGURATION in labels:
                self.queue.mark((kinds.CONFIGURATION.kind, namespace, labels[objects.CONFIGURATION]))
            self._mark_routes(namespace)
        elif kind is kinds.CONFIGURATION:
            self._mark_routes(namespace)
        if kind in (kinds.CONFIGURATION, kinds.ROUTE) and objects.SERVICE in labels:
            self.queue.mark((kinds.SERVICE.kind, namespace, labels[objects.SERVICE]))

    def _mark_routes(self, namespace: str) -> None:
        for route in self._store.list(kinds.ROUTE, namespace)[0]:
            self.queue.mark((kinds.ROUTE.kind, namespace, route["metadata"]["name"]))

    async def _look(self, key: Key) -> None:
        kind, namespace, name = key
        if kind == kinds.SERVICE.kind:
            self._look_at_service(namespace, name)
        elif kind == kinds.CONFIGURATION.kind:
            self._look_at_configuration(namespace, name)
        elif kind == kinds.ROUTE.kind:
            self._look_at_route(namespace, name)

    # -- Service ------------------------------------------------------------------------------------------------

    def _look_at_service(self, namespace: str, name: str) -> None:
        service = self._store.get(kinds.SERVICE, namespace, name)
        if service is None or service["metadata"].get("deletionTimestamp"):
            return
        configuration = self._ensure(kinds.CONFIGURATION, objects.configuration_for(service))
        route = self._ensure(kinds.ROUTE, objects.route_for(service))
        conditions = [
            _mirror("ConfigurationsReady", configuration, "Configuration"),
            _mirror("RoutesReady", route, "Route"),
        ]
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
        revisions = [
            revision
            for revision in self._store.list(kinds.REVISION, namespace)[0]
            if objects.labels_of(revision).get(objects.CONFIGURATION) == name
        ]
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

    # -- Route --------------------------------------------------------------------------------------------------

    def _look_at_route(self, namespace: str, name: str) -> None:
        route = self._store.get(kinds.ROUTE, namespace, name)
        if route is None or route["metadata"].get("deletionTimestamp"):
            self._routes.remove(namespace, name)
            self._reach(namespace, name, frozenset())
            return
        targets: list[RouteTarget] = []
        traffic: list[Object] = []
        missing: Condition | None = None
        for line in route["spec"].get("traffic") or ():
            resolved = self._resolve(namespace, line)
            if isinstance(resolved, Condition):
                missing = missing or resolved
                continue
            percent = int(line.get("percent") or 0)
            targets.append(RouteTarget(RevisionKey(namespace, resolved), percent, line.get("tag")))
            shown: Object = {"revisionName": resolved, "latestRevision": bool(line.get("latestRevision"))}
            if percent or not line.get("tag"):
                shown["percent"] = percent
            if line.get("tag"):
                shown |= {"tag": line["tag"], "url": self._addresses.url(namespace, name, line["tag"])}
            traffic.append(shown)
        url = self._addresses.url(namespace, name)
        status: Object = {
            "observedGeneration": route["metadata"]["generation"],
            "url": url,
            "address": {"url": f"http://{name}.{namespace}.svc.cluster.local"},
        }
        if missing is None:
            self._routes.set(namespace, name, tuple(targets))
            self._reach(namespace, name, frozenset(target.revision for target in targets))
            status["traffic"] = traffic
            conditions = [Condition("AllTrafficAssigned", "True"), Condition("IngressReady", "True")]
        else:
            # What was assigned before stays in force: a revision that fails never takes the working one's traffic.
            before = (route.get("status") or {}).get("traffic")
            if before:
                status["traffic"] = before
                self._restore(namespace, name, before)
            conditions = [
                missing,
                Condition("IngressReady", "Unknown", "IngressNotConfigured", "Ingress has not yet been reconciled."),
            ]
        conditions.append(
            Condition("CertificateProvisioned", "True", "TLSNotEnabled", "external-domain-tls is not enabled")
        )
        self._write_status(kinds.ROUTE, route, status, conditions)

    def _resolve(self, namespace: str, line: Mapping[str, Any]) -> str | Condition:
        """The revision that a line of traffic means, or the condition that says why there is none yet."""
        if line.get("revisionName"):
            named = str(line["revisionName"])
            revision = self._store.get(kinds.REVISION, namespace, named)
            if revision is None:
                message = f'Revision "{named}" referenced in traffic not found.'
                return Condition("AllTrafficAssigned", "False", "RevisionMissing", message)
            if not is_true(revision):
                message = f'Revision "{named}" is not yet ready.'
                failed = (find(revision, "Ready") or Condition("Ready", "Unknown")).status == "False"
                return Condition("AllTrafficAssigned", "False" if failed else "Unknown", "RevisionMissing", message)
            return named
        configuration_name = str(line.get("configurationName") or "")
        configuration = self._store.get(kinds.CONFIGURATION, namespace, configuration_name)
        status = (configuration or {}).get("status") or {}
        if status.get("latestReadyRevisionName"):
            return str(status["latestReadyRevisionName"])
        if (find(configuration, "Ready") or Condition("Ready", "Unknown")).status == "False":
            message = f'Configuration "{configuration_name}" does not have any ready Revision.'
            return Condition("AllTrafficAssigned", "False", "RevisionMissing", message)
        return Condition("AllTrafficAssigned", "Unknown", "RevisionMissing", WAITING.format(configuration_name))

    def _restore(self, namespace: str, name: str, traffic: list[Object]) -> None:
        targets = tuple(
            RouteTarget(RevisionKey(namespace, line["revisionName"]), int(line.get("percent") or 0), line.get("tag"))
            for line in traffic
        )
        self._routes.set(namespace, name, targets)
        self._reach(namespace, name, frozenset(target.revision for target in targets))

    def _reach(self, namespace: str, name: str, now: frozenset[RevisionKey]) -> None:
        before = self._routed.pop((namespace, name), frozenset())
        if now:
            self._routed[namespace, name] = now
        for key in before ^ now:
            self._set_routing_state(key)
            self._revision_changed(*key)

    def _set_routing_state(self, key: RevisionKey) -> None:
        revision = self._store.get(kinds.REVISION, *key)
        state = "active" if self.reachable(key) else "reserve"
        if revision is None or objects.labels_of(revision).get(objects.ROUTING_STATE) == state:
            return
        labels = objects.labels_of(revision) | {objects.ROUTING_STATE: state}
        self._store.update(kinds.REVISION, {**revision, "metadata": {**revision["metadata"], "labels": labels}})

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


def _latest_ready(by_generation: Mapping[int, Mapping[str, Any]], before: str | None) -> str | None:
    """The newest revision that is ready. It never goes back: one that was ready and fails later keeps its traffic,
    for the older one may be what was replaced on purpose."""
    floor = max((at for at, one in by_generation.items() if one["metadata"]["name"] == before), default=-1)
    ready = [at for at, one in by_generation.items() if is_true(one) and at >= floor]
    if ready:
        return str(by_generation[max(ready)]["metadata"]["name"])
    return before if floor >= 0 else None
