"""The broker's metrics: few, and each answers a question. In a registry of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

Gauged = Callable[[], Iterable[tuple[tuple[str, str], float]]]
"""((namespace, name), value) of everything there is."""


class Metrics:
    """How many came, how many were delivered, tried again or given up, how long that took, and how many wait."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._children: dict[tuple[str, tuple[str, ...]], Any] = {}
        by_broker, by_trigger = ["namespace", "broker"], ["namespace", "trigger"]
        self._families: dict[str, Counter | Histogram] = {
            "accepted": Counter("relight_broker_events_accepted", "Events on disk", by_broker, registry=self.registry),
            "refused": Counter(
                "relight_broker_events_refused",
                "Events that were not accepted, by the status that said so",
                ["code"],
                registry=self.registry,
            ),
            "delivered": Counter("relight_broker_deliveries", "Deliveries done", by_trigger, registry=self.registry),
            "retried": Counter(
                "relight_broker_retries", "Attempts that failed and are made again", by_trigger, registry=self.registry
            ),
            "dead": Counter(
                "relight_broker_dead",
                "Deliveries given up, those that a dead-letter sink got included",
                by_trigger,
                registry=self.registry,
            ),
            "attempt": Histogram(
                "relight_broker_attempt_seconds",
                "How long a subscriber took to answer",
                by_trigger,
                buckets=_SECONDS,
                registry=self.registry,
            ),
            "latency": Histogram(
                "relight_broker_delivery_seconds",
                "From an event's arrival to the answer that settled it",
                by_trigger,
                buckets=_SECONDS,
                registry=self.registry,
            ),
        }

    def count(self, family: str, *labels: str) -> None:
        self._child(family, labels).inc()

    def observe(self, family: str, seconds: float, *labels: str) -> None:
        self._child(family, labels).observe(seconds)

    def gauge(self, name: str, text: str, labels: tuple[str, str], values: Gauged) -> None:
        """A gauge whose values are asked for when it is read."""
        self.registry.register(_Gauge(name, text, labels, values))

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)

    def _child(self, family: str, labels: tuple[str, ...]) -> Any:
        child = self._children.get((family, labels))
        if child is None:
            child = self._children[family, labels] = self._families[family].labels(*labels)
        return child


class _Gauge(Collector):
    def __init__(self, name: str, text: str, labels: tuple[str, str], values: Gauged) -> None:
        self._name, self._text, self._labels, self._values = name, text, labels, values

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(self._name, self._text, labels=self._labels)
        for labels, value in self._values():
            family.add_metric(labels, value)
        yield family
