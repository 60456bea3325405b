"""Where observations come from: local mode's router, a Prometheus beside Knative, or the functions' own ``/metrics``.

All tell the same, per revision: how many requests there were since it began to count, how many are there now, and how
long its cold starts took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
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
                field = _ROUTER.get(sample.name)
                if field is None or sample.labels.get("phase", "total") != "total":
                    continue
                name = sample.labels["revision"]
                namespace = sample.labels.get("namespace")
                if namespace is None:
                    namespace, _, name = name.partition("/")
                _add(found, (namespace, name), field, sample.value)
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
    """What the replicas of revisions count: requests, and how long each took to load."""

    def __init__(self) -> None:
        self.requests, self.seconds, self.starts = Tally(), Tally(), Tally()

    def loaded(self, revision: Revision, replica: str, seconds: float) -> None:
        self.seconds.put(revision, replica, seconds)
        self.starts.put(revision, replica, 1.0)

    def readings(self, present: Mapping[Revision, float]) -> Mapping[Revision, Reading]:
        requests, seconds, starts = self.requests.totals(), self.seconds.totals(), self.starts.totals()
        return {
            revision: Reading(
                requests.get(revision, 0.0),
                present.get(revision, 0.0),
                seconds.get(revision, 0.0),
                starts.get(revision, 0.0),
            )
            for revision in {**requests, **starts, **present}
        }


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
    LOADS = "sum by (namespace, serving_knative_dev_revision, instance) (relight_load_seconds)"
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
        for revision, replica, value in self._ask(*self.REQUESTS):
            self._replicas.requests.put(revision, replica, value)
        for revision, replica, value in self._ask(self.LOADS):
            self._replicas.loaded(revision, replica, value)
        present: dict[Revision, float] = {}
        for revision, _, value in self._ask(*self.RUNNING):
            present[revision] = max(value, present.get(revision, 0.0))
        for revision, _, value in self._ask(*self.WAITING):
            present[revision] = value + present.get(revision, 0.0)
        return self._replicas.readings(present)

    def _ask(self, *expressions: str) -> Iterator[tuple[Revision, str, float]]:
        for expression in expressions:
            for labels, value in instant(self._url, expression, self._fetch):
                for namespace, name in self._LABELS:
                    if namespace in labels and name in labels:
                        yield (labels[namespace], labels[name]), labels.get("instance", ""), value


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
            requests, load = 0.0, 0.0
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if sample.name == "relight_requests_total":
                        requests += sample.value
                    elif sample.name == "relight_requests_in_flight":
                        present[revision] += sample.value
                    elif sample.name == "relight_load_seconds":
                        load += sample.value
            self._replicas.requests.put(revision, url, requests)
            if load:
                self._replicas.loaded(revision, url, load)
        return self._replicas.readings(present)


def _add(found: dict[Revision, Reading], revision: Revision, field: str, value: float) -> None:
    now = found.get(revision, Reading())
    found[revision] = replace(now, **{field: getattr(now, field) + value})
