"""Where observations come from: local mode's router, a Prometheus beside Knative, or the functions' own ``/metrics``.

All tell the same, per revision: how many requests there were since it began to count, how many are there now, and how
long its cold starts took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from relight.base.errors import PlatformError
from relight.net.prometheus import Fetch, instant

Revision = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True)
class Reading:
    """One revision at one moment."""

    requests: float = 0.0
    """Answered since the counter began."""
    present: float = 0.0
    """Held or in flight."""
    cold_seconds: float = 0.0
    """Of all cold starts together,"""
    cold_starts: float = 0.0
    """and how many there were."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Of those seconds, how many each phase took (fork, import, fetch, load…)."""


class Source(Protocol):
    """Something that knows what is called."""

    def read(self) -> Mapping[Revision, Reading]:
        """All revisions that are known there. PlatformError: nothing can be read now."""
        ...


class RouterSource:
    """Local mode's router, which counts every request and times every cold start."""

    def __init__(self, url: str, fetch: Fetch) -> None:
        self._url = url.rstrip("/") + "/metrics"
        self._fetch = fetch

    def read(self) -> Mapping[Revision, Reading]:
        from prometheus_client.parser import text_string_to_metric_families

        found: dict[Revision, Reading] = {}
        for family in text_string_to_metric_families(self._fetch(self._url, {}).decode("utf-8", "replace")):
            for sample in family.samples:
                counted = _ROUTER.get(sample.name)
                if counted is None:
                    continue
                name = sample.labels["revision"]
                namespace = sample.labels.get("namespace")
                if namespace is None:
                    namespace, _, name = name.partition("/")
                phase = sample.labels.get("phase", "total")
                if phase == "total":
                    _add(found, (namespace, name), counted, sample.value)
                elif counted == "cold_seconds":
                    _add_phase(found, (namespace, name), phase, sample.value)
        return found


_ROUTER = {
    "relight_router_requests_total": "requests",
    "relight_router_held": "present",
    "relight_router_in_flight": "present",
    "relight_cold_start_seconds_sum": "cold_seconds",
    "relight_cold_start_seconds_count": "cold_starts",
}


class Tally:
    """Counters of replicas. One ends with its replica, but what it had counted stays counted."""

    MOST = 4096
    """Replicas that are told apart; what older ones counted is kept as a sum."""

    def __init__(self) -> None:
        self._last: dict[tuple[Revision, str], float] = {}
        self._before: dict[Revision, float] = {}

    def put(self, revision: Revision, replica: str, value: float) -> None:
        """What a replica's counter says now. One that says less than before began anew."""
        key = (revision, replica)
        last = self._last.pop(key, 0.0)
        if value < last:
            self._before[revision] = self._before.get(revision, 0.0) + last
        self._last[key] = value
        if len(self._last) > self.MOST:
            oldest = next(iter(self._last))
            self._before[oldest[0]] = self._before.get(oldest[0], 0.0) + self._last.pop(oldest)

    def totals(self) -> Mapping[Revision, float]:
        """Of all replicas that there ever were."""
        found = dict(self._before)
        for (revision, _), value in self._last.items():
            found[revision] = found.get(revision, 0.0) + value
        return found


class _Replicas:
    """What the replicas of revisions count: requests, and how long each phase of their starts took."""

    def __init__(self) -> None:
        self.requests, self._starts = Tally(), Tally()
        self._phases: dict[str, Tally] = {}

    def loaded(self, revision: Revision, replica: str, phase: str, seconds: float) -> None:
        self._phases.setdefault(phase, Tally()).put(revision, replica, seconds)
        self._starts.put(revision, replica, 1.0)

    def readings(self, present: Mapping[Revision, float]) -> Mapping[Revision, Reading]:
        requests, starts = self.requests.totals(), self._starts.totals()
        found = {
            revision: Reading(
                requests.get(revision, 0.0), present.get(revision, 0.0), cold_starts=starts.get(revision, 0.0)
            )
            for revision in {**requests, **starts, **present}
        }
        for phase, tally in self._phases.items():
            for revision, seconds in tally.totals().items():
                _add(found, revision, "cold_seconds", seconds)
                _add_phase(found, revision, phase, seconds)
        return found


class PrometheusSource:
    """A Prometheus that reads Knative's queue-proxies and activators, and relight's functions for the loads.

    A request is counted where it was answered. What waits in the activator is added to what replicas have, by the
    queue-proxy (which says nothing where concurrency is not limited) or by the function itself. Knative's metrics have
    other names from version 1.19 on; a cluster has those of one kind.
    """

    REQUESTS = (
        "sum by (namespace_name, revision_name, instance) (revision_request_count)",
        "sum by (k8s_namespace_name, kn_revision_name, instance) (kn_serving_invocation_duration_seconds_count)",
    )
    WAITING = (
        "sum by (namespace_name, revision_name) (activator_request_concurrency)",
        "sum by (k8s_namespace_name, kn_revision_name) (kn_revision_request_concurrency)",
    )
    RUNNING = (
        "sum by (namespace_name, revision_name) (revision_queue_depth)",
        "sum by (k8s_namespace_name, kn_revision_name) (kn_serving_queue_depth)",
        "sum by (namespace, serving_knative_dev_revision) (relight_requests_in_flight)",
    )
    LOADS = "sum by (namespace, serving_knative_dev_revision, instance, phase) (relight_load_seconds)"
    _LABELS = (
        ("namespace_name", "revision_name"),
        ("k8s_namespace_name", "kn_revision_name"),
        ("namespace", "serving_knative_dev_revision"),
    )

    def __init__(self, url: str, fetch: Fetch) -> None:
        self._url = url
        self._fetch = fetch
        self._replicas = _Replicas()

    def read(self) -> Mapping[Revision, Reading]:
        for revision, labels, value in self._ask(*self.REQUESTS):
            self._replicas.requests.put(revision, labels.get("instance", ""), value)
        for revision, labels, value in self._ask(self.LOADS):
            self._replicas.loaded(revision, labels.get("instance", ""), labels.get("phase", "load"), value)
        present: dict[Revision, float] = {}
        for revision, _, value in self._ask(*self.RUNNING):
            present[revision] = max(value, present.get(revision, 0.0))
        for revision, _, value in self._ask(*self.WAITING):
            present[revision] = value + present.get(revision, 0.0)
        return self._replicas.readings(present)

    def _ask(self, *expressions: str) -> Iterator[tuple[Revision, Mapping[str, str], float]]:
        for expression in expressions:
            for labels, value in instant(self._url, expression, self._fetch):
                for namespace, name in self._LABELS:
                    if namespace in labels and name in labels:
                        yield (labels[namespace], labels[name]), labels, value


class FunctionSource:
    """The functions' own ``/metrics``, by address."""

    def __init__(self, replicas: Callable[[], Mapping[str, Revision]], fetch: Fetch) -> None:
        self._addresses = replicas
        """Base URLs of replicas, and whose they are."""
        self._fetch = fetch
        self._replicas = _Replicas()

    def read(self) -> Mapping[Revision, Reading]:
        from prometheus_client.parser import text_string_to_metric_families

        present: dict[Revision, float] = {}
        for url, revision in self._addresses().items():
            present.setdefault(revision, 0.0)
            try:
                text = self._fetch(url.rstrip("/") + "/metrics", {}).decode("utf-8", "replace")
            except PlatformError:
                continue  # it is starting, or going: what it had counted is what is known
            requests = 0.0
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if sample.name == "relight_requests_total":
                        requests += sample.value
                    elif sample.name == "relight_requests_in_flight":
                        present[revision] += sample.value
                    elif sample.name == "relight_load_seconds":
                        self._replicas.loaded(revision, url, sample.labels.get("phase", "load"), sample.value)
            self._replicas.requests.put(revision, url, requests)
        return self._replicas.readings(present)


def _add(found: dict[Revision, Reading], revision: Revision, name: str, value: float) -> None:
    now = found.get(revision, Reading())
    found[revision] = replace(now, **{name: getattr(now, name) + value})


def _add_phase(found: dict[Revision, Reading], revision: Revision, phase: str, seconds: float) -> None:
    now = found.get(revision, Reading())
    found[revision] = replace(now, phases={**now.phases, phase: now.phases.get(phase, 0.0) + seconds})
