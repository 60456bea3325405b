"""Where observations come from: local mode's router, a Prometheus beside Knative, or the functions' own ``/metrics``.

All tell the same, per revision: how many requests there were since it began to count, how many are there now, and how
long its cold starts took.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


class PrometheusSource:
    """A Prometheus that reads Knative's queue-proxies and activators, and relight's functions for the loads.

    What waits in the activator is added to what the queue-proxies have; a request is counted where it was answered.
    """

    QUERIES = (
        ("requests", "sum by (namespace_name, revision_name) (revision_request_count)"),
        ("present", "sum by (namespace_name, revision_name) (revision_queue_depth)"),
        ("present", "sum by (namespace_name, revision_name) (activator_request_concurrency)"),
        ("cold_seconds", "sum by (namespace, serving_knative_dev_revision) (relight_load_seconds)"),
        ("cold_starts", 'count by (namespace, serving_knative_dev_revision) (relight_load_seconds{phase="load"})'),
    )
    _LABELS = (("namespace_name", "revision_name"), ("namespace", "serving_knative_dev_revision"))

    def __init__(self, url: str, fetch: Fetch) -> None:
        self._url = url
        self._fetch = fetch

    def read(self) -> Mapping[Revision, Reading]:
        found: dict[Revision, Reading] = {}
        for field, expression in self.QUERIES:
            for labels, value in instant(self._url, expression, self._fetch):
                for namespace, name in self._LABELS:
                    if namespace in labels and name in labels:
                        _add(found, (labels[namespace], labels[name]), field, value)
        return found


class FunctionSource:
    """The functions' own ``/metrics``, by address. A replica's counter ends with it: what it counted stays counted."""

    def __init__(self, replicas: Callable[[], Mapping[str, Revision]], fetch: Fetch) -> None:
        self._replicas = replicas
        """Base URLs of replicas, and whose they are."""
        self._fetch = fetch
        self._last: dict[str, tuple[Revision, float]] = {}
        self._gone: dict[Revision, Reading] = {}

    def read(self) -> Mapping[Revision, Reading]:
        from prometheus_client.parser import text_string_to_metric_families

        replicas = dict(self._replicas())
        for url in [url for url in self._last if url not in replicas]:
            revision, requests = self._last.pop(url)
            _add(self._gone, revision, "requests", requests)
        found = dict(self._gone)
        for url, revision in replicas.items():
            found.setdefault(revision, Reading())
            try:
                text = self._fetch(url.rstrip("/") + "/metrics", {}).decode("utf-8", "replace")
            except PlatformError:
                # It is starting, or going: what it had counted is what is known.
                _add(found, revision, "requests", self._last.get(url, (revision, 0.0))[1])
                continue
            requests, load = 0.0, 0.0
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if sample.name == "relight_requests_total":
                        requests += sample.value
                    elif sample.name == "relight_requests_in_flight":
                        _add(found, revision, "present", sample.value)
                    elif sample.name == "relight_load_seconds":
                        load += sample.value
            before = self._last.get(url, (revision, 0.0))[1]
            if requests < before:
                _add(self._gone, revision, "requests", before)
                _add(found, revision, "requests", before)
            self._last[url] = (revision, requests)
            _add(found, revision, "requests", requests)
            if load:
                _add(found, revision, "cold_seconds", load)
                _add(found, revision, "cold_starts", 1.0)
        return found


def _add(found: dict[Revision, Reading], revision: Revision, field: str, value: float) -> None:
    now = found.get(revision, Reading())
    found[revision] = replace(now, **{field: getattr(now, field) + value})
