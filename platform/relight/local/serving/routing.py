"""Routes: from the lines of ``spec.traffic`` to what the router does, and to the status that says so.

A line means a revision by its name, or a configuration's latest ready one; the latter may move there gradually
(``serving.knative.dev/rollout-duration``). While a line leads nowhere yet, what was assigned before stays in force: a
revision that fails never takes the working one's traffic.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from relight.base.units import parse_duration
from relight.decide import rollouts
from relight.decide.rollouts import Rollout
from relight.local.conditions import Condition, find, is_true, render, summary
from relight.local.kube import kinds
from relight.local.kube.configs import Configs
from relight.local.kube.kinds import Kind
from relight.local.kube.store import ObjectStore
from relight.local.serving import objects
from relight.local.serving.objects import rfc3339
from relight.local.serving.types import RevisionKey, RouteTarget

log = logging.getLogger("relight.local.serving")

Object = dict[str, Any]
WAITING = 'Configuration "{}" is waiting for a Revision to become ready.'
ROLLOUT = "relight.dev/rollout"
"""Annotation of a Route: how far its rollouts are, so that a platform that starts again goes on with them."""

_NOT_CONFIGURED = Condition("IngressReady", "Unknown", "IngressNotConfigured", "Ingress has not yet been reconciled.")
_ROLLING = Condition(
    "IngressReady", "Unknown", "RolloutInProgress", "A gradual rollout of the latest revision(s) is in progress."
)
_NO_TLS = Condition("CertificateProvisioned", "True", "TLSNotEnabled", "external-domain-tls is not enabled")


class RouteTable(Protocol):
    """The part of the router's table that is written here."""

    def set(self, namespace: str, name: str, targets: tuple[RouteTarget, ...]) -> None: ...

    def remove(self, namespace: str, name: str) -> None: ...


class Addresses(Protocol):
    """What a route is called from outside; known once the router listens."""

    def url(self, namespace: str, name: str, tag: str | None = None) -> str: ...


@dataclass(frozen=True)
class Assigned:
    """One line of traffic as it is in force: a revision, its share, and how the status shows it."""

    revision: str
    percent: int
    tag: str | None
    latest: bool

    def shown(self, url: Callable[[str], str]) -> Object:
        line: Object = {"revisionName": self.revision, "latestRevision": self.latest}
        if self.percent or not self.tag:
            line["percent"] = self.percent
        return line | ({"tag": self.tag, "url": url(self.tag)} if self.tag else {})


class Routing:
    """Reconciles Routes; ``look_again`` is told when a rollout's next step is due."""

    def __init__(
        self,
        store: ObjectStore,
        table: RouteTable,
        addresses: Addresses,
        *,
        revision_changed: Callable[[str, str], None],
        look_again: Callable[[str, str], None],
        at_once: Callable[[RevisionKey], bool],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._table = table
        self._addresses = addresses
        self._revision_changed = revision_changed
        self._look_again = look_again
        self._at_once = at_once
        self._now = now
        self._configs = Configs(store)
        self._routed: dict[tuple[str, str], frozenset[RevisionKey]] = {}
        self._routes: dict[RevisionKey, dict[tuple[str, str], bool]] = {}
        """By revision, the routes that lead to it, and whether one does so only because it is the latest."""
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}

    def reachable(self, key: RevisionKey) -> bool:
        """Whether any route sends traffic to a revision (Knative's reachability)."""
        return key in self._routes

    def following(self, key: RevisionKey) -> bool:
        """Whether a revision gets its traffic only for being the latest, until a newer one is ready."""
        routes = self._routes.get(key)
        return routes is not None and all(routes.values())

    def restore(self) -> list[RevisionKey]:
        """Put in force what the Routes' status says, before anything is reconciled; the revisions that get traffic.

        A platform that starts again with many functions can be called at once: each is looked at when its turn comes.
        """
        for route in self._store.list(kinds.ROUTE)[0]:
            lines = (route.get("status") or {}).get("traffic")
            if lines and not route["metadata"].get("deletionTimestamp"):
                meta = route["metadata"]
                self._enforce(meta["namespace"], meta["name"], tuple(map(_assigned, lines)))
        return list(self._routes)

    def look(self, namespace: str, name: str) -> None:
        route = self._store.get(kinds.ROUTE, namespace, name)
        if route is None or route["metadata"].get("deletionTimestamp"):
            self._put(namespace, name, None)
            return
        before = self._before(route)
        after: dict[str, Rollout] = {}
        assigned: list[Assigned] = []
        missing: Condition | None = None
        for line in route["spec"].get("traffic") or ():
            found = self._resolve(namespace, line)
            if isinstance(found, Condition):
                missing = missing or found
            else:
                assigned += self._assign(route, line, found, before, after)
        status: Object = {
            "observedGeneration": route["metadata"]["generation"],
            "url": self._addresses.url(namespace, name),
            "address": {"url": f"http://{name}.{namespace}.svc.cluster.local"},
        }
        if missing is None:
            self._remember(route, after)
            self._put(namespace, name, tuple(assigned))
            status["traffic"] = [one.shown(lambda tag: self._addresses.url(namespace, name, tag)) for one in assigned]
            rolling = any(not rollout.done for rollout in after.values())
            ingress = _ROLLING if rolling else Condition("IngressReady", "True")
            conditions = [Condition("AllTrafficAssigned", "True"), ingress, _NO_TLS]
        else:
            stays = (route.get("status") or {}).get("traffic")
            if stays:
                status["traffic"] = stays
            self._put(namespace, name, tuple(map(_assigned, stays)) if stays else None)
            certificate = _NO_TLS if stays else Condition("CertificateProvisioned", "Unknown")
            conditions = [missing, _NOT_CONFIGURED, certificate]
        rows = (route.get("status") or {}).get("conditions") or ()
        status["conditions"] = render([*conditions, summary(conditions)], rows, rfc3339())
        self._store.set_status(kinds.ROUTE, namespace, name, status)

    # -- what a line means

    def _resolve(self, namespace: str, line: Mapping[str, Any]) -> str | Condition:
        """The revision that a line of traffic means, or the condition that says why there is none yet."""
        if line.get("revisionName"):
            return self._named(namespace, str(line["revisionName"]))
        name = str(line.get("configurationName") or "")
        configuration = self._store.get(kinds.CONFIGURATION, namespace, name)
        if configuration is None:
            return _missing("Configuration", name)
        latest = (configuration.get("status") or {}).get("latestReadyRevisionName")
        if latest and self._store.get(kinds.REVISION, namespace, latest) is not None:
            return str(latest)
        if (find(configuration, "Ready") or Condition("Ready", "Unknown")).status == "False":
            message = f'Configuration "{name}" does not have any ready Revision.'
            return Condition("AllTrafficAssigned", "False", "RevisionMissing", message)
        return Condition("AllTrafficAssigned", "Unknown", "RevisionMissing", WAITING.format(name))

    def _named(self, namespace: str, name: str) -> str | Condition:
        revision = self._store.get(kinds.REVISION, namespace, name)
        if revision is None:
            return _missing("Revision", name)
        if is_true(revision):
            return name
        if (find(revision, "Ready") or Condition("Ready", "Unknown")).status == "False":
            message = f'Revision "{name}" failed to become ready.'
            return Condition("AllTrafficAssigned", "False", "RevisionMissing", message)
        return Condition("AllTrafficAssigned", "Unknown", "RevisionMissing", f'Revision "{name}" is not yet ready.')

    # -- shares

    def _assign(
        self,
        route: Object,
        line: Mapping[str, Any],
        revision: str,
        before: Mapping[str, Rollout],
        after: dict[str, Rollout],
    ) -> list[Assigned]:
        percent, tag = int(line.get("percent") or 0), line.get("tag")
        if line.get("revisionName"):
            return [Assigned(revision, percent, tag, bool(line.get("latestRevision")))]
        key = f"{line['configurationName']}/{tag or ''}"
        namespace = route["metadata"]["namespace"]
        # The machine cannot hold both: there is nothing to move from step by step.
        duration = 0.0 if self._at_once(RevisionKey(namespace, revision)) else self._duration(route)
        rollout = rollouts.advance(before.get(key), revision, percent, duration, self._now())
        if any(self._store.get(kinds.REVISION, namespace, name) is None for name, _ in rollout.shares):
            rollout = Rollout(((revision, percent),))  # an old one was deleted: there is nothing to move from
        after[key] = rollout
        return [
            Assigned(name, share, tag if name == revision else None, name == revision) for name, share in rollout.shares
        ]

    def _duration(self, route: Object) -> float:
        own = objects.annotations_of(route).get(objects.ROLLOUT_DURATION)
        try:
            return self._configs.rollout_duration() if own is None else parse_duration(own)
        except ValueError as error:
            log.warning("route.rollout-duration route=%s error=%s: at once", route["metadata"]["name"], error)
            return 0.0

    def _before(self, route: Object) -> dict[str, Rollout]:
        """How the shares are now: what is under way, else what the status says of lines that follow a configuration."""
        found = _under_way(route)
        for line in (route.get("status") or {}).get("traffic") or ():
            revision = self._store.get(kinds.REVISION, route["metadata"]["namespace"], line["revisionName"])
            if revision is not None and line.get("latestRevision"):
                name = objects.labels_of(revision).get(objects.CONFIGURATION, "")
                share = (line["revisionName"], int(line.get("percent") or 0))
                found.setdefault(f"{name}/{line.get('tag') or ''}", Rollout((share,)))
        return found

    def _remember(self, route: Object, after: Mapping[str, Rollout]) -> None:
        meta, under_way = route["metadata"], {key: one for key, one in after.items() if not one.done}
        key = (meta["namespace"], meta["name"])
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if under_way:
            delay = max(0.0, min(one.next_at for one in under_way.values()) - self._now())
            self._timers[key] = asyncio.get_running_loop().call_later(delay, self._look_again, *key)
        annotations = objects.annotations_of(route)
        annotations.pop(ROLLOUT, None)
        if under_way:
            said = {name: asdict(one) for name, one in under_way.items()}
            annotations[ROLLOUT] = json.dumps(said, separators=(",", ":"))
        if annotations != objects.annotations_of(route):
            self._store.update(kinds.ROUTE, {**route, "metadata": {**meta, "annotations": annotations}})

    # -- what is in force

    def _put(self, namespace: str, name: str, assigned: tuple[Assigned, ...] | None) -> None:
        for key in self._enforce(namespace, name, assigned):
            self._label(key)
            self._revision_changed(*key)
        for line in {one.revision for one in assigned or () if one.latest}:
            revision = self._store.get(kinds.REVISION, namespace, line)
            self._annotate(kinds.CONFIGURATION, namespace, objects.labels_of(revision or {"metadata": {}}), name)

    def _enforce(self, namespace: str, name: str, assigned: tuple[Assigned, ...] | None) -> frozenset[RevisionKey]:
        """Tell the router; the revisions that a route begins or ceases to lead to."""
        if assigned is None:
            self._table.remove(namespace, name)
        else:
            targets = [RouteTarget(RevisionKey(namespace, one.revision), one.percent, one.tag) for one in assigned]
            self._table.set(namespace, name, tuple(targets))
        now = frozenset(RevisionKey(namespace, one.revision) for one in assigned or ())
        before = self._routed.pop((namespace, name), frozenset())
        if now:
            self._routed[namespace, name] = now
        for key in before - now:
            del self._routes[key][namespace, name]
            if not self._routes[key]:
                del self._routes[key]
        for key in now:
            lines = [one.latest for one in assigned or () if one.revision == key.name]
            self._routes.setdefault(key, {})[namespace, name] = all(lines)
        return before ^ now

    def _label(self, key: RevisionKey) -> None:
        """Knative's labels of a revision: whether it is routed to, since when, by which routes."""
        revision = self._store.get(kinds.REVISION, *key)
        if revision is None:
            return
        names = sorted(name for _, name in self._routes.get(key, ()))
        annotations, labels = objects.annotations_of(revision), objects.labels_of(revision)
        state = "active" if names else "reserve"
        if labels.get(objects.ROUTING_STATE) != state:
            labels[objects.ROUTING_STATE] = state
            annotations[objects.ROUTING_STATE_MODIFIED] = rfc3339()
        annotations.pop(objects.ROUTES, None)
        annotations |= {objects.ROUTES: ",".join(names)} if names else {}
        metadata = {**revision["metadata"], "labels": labels, "annotations": annotations}
        self._store.update(kinds.REVISION, {**revision, "metadata": metadata})

    def _annotate(self, kind: Kind, namespace: str, labels: Mapping[str, str], route: str) -> None:
        configuration = self._store.get(kind, namespace, labels.get(objects.CONFIGURATION, ""))
        if configuration is None:
            return
        annotations = objects.annotations_of(configuration)
        names = sorted({*filter(None, annotations.get(objects.ROUTES, "").split(",")), route})
        annotations[objects.ROUTES] = ",".join(names)
        metadata = {**configuration["metadata"], "annotations": annotations}
        self._store.update(kind, {**configuration, "metadata": metadata})


def _missing(kind: str, name: str) -> Condition:
    message = f'{kind} "{name}" referenced in traffic not found.'
    return Condition("AllTrafficAssigned", "False", f"{kind}Missing", message)


def _assigned(line: Mapping[str, Any]) -> Assigned:
    return Assigned(
        line["revisionName"], int(line.get("percent") or 0), line.get("tag"), bool(line.get("latestRevision"))
    )


def _under_way(route: Object) -> dict[str, Rollout]:
    try:
        found = json.loads(objects.annotations_of(route).get(ROLLOUT, "{}"))
        return {
            key: Rollout(**{**one, "shares": tuple((name, share) for name, share in one["shares"])})
            for key, one in found.items()
        }
    except (ValueError, TypeError, KeyError):
        return {}  # somebody wrote there: begin with what is in the spec
