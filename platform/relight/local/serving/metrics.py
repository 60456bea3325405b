"""What the router counts: plain numbers on the hot path, turned into Prometheus families when somebody scrapes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from relight.local.serving.activator import Gate
from relight.local.serving.types import RevisionKey

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the duration buckets, in seconds: from a warm trivial call to Knative's default timeout."""

HANGUP = "hangup"
"""Class of a request whose client went away before the answer began."""
CUT = "cut"
"""Class of a request whose answer broke off after it had begun."""


class Series:
    """Counts of one revision."""

    __slots__ = ("buckets", "by_class", "seconds")

    def __init__(self) -> None:
        self.by_class: dict[str, int] = {}
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def observe(self, code_class: str, seconds: float) -> None:
        self.by_class[code_class] = self.by_class.get(code_class, 0) + 1
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds


class RouterMetrics(Collector):
    """Requests by revision and class of answer, their durations, and what is held and in flight now."""

    def __init__(self, gates: Iterable[Gate], registry: CollectorRegistry | None = None) -> None:
        self._gates = gates
        self._series: dict[RevisionKey, Series] = {}
        self._registry = registry

    def register(self) -> None:
        if self._registry is not None:
            self._registry.register(self)

    def unregister(self) -> None:
        if self._registry is not None:
            self._registry.unregister(self)

    def series(self, key: RevisionKey) -> Series:
        """The counts of a revision, to be kept by who counts."""
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = Series()
        return series

    def describe(self) -> Iterator[Metric]:
        """Names only, so that registering does not collect."""
        yield from self._families()

    def collect(self) -> Iterator[Metric]:
        requests, durations, held, in_flight = self._families()
        here = {gate.key for gate in self._gates}
        for key in [key for key in self._series if key not in here]:
            # A deleted revision: who scrapes has had its last numbers, or would only keep them for ever.
            del self._series[key]
        for key, series in list(self._series.items()):
            labels = [key.namespace, key.name]
            for code_class, count in sorted(series.by_class.items()):
                requests.add_metric([*labels, code_class], count)
            total = 0
            buckets: list[tuple[str, float]] = []
            for bound, count in zip((*map(str, BOUNDS), "+Inf"), series.buckets, strict=True):
                total += count
                buckets.append((bound, float(total)))
            durations.add_metric(labels, buckets, series.seconds)
        for gate in self._gates:
            labels = [gate.key.namespace, gate.key.name]
            held.add_metric(labels, gate.held)
            in_flight.add_metric(labels, gate.in_flight)
        yield from (requests, durations, held, in_flight)

    @staticmethod
    def _families() -> tuple[CounterMetricFamily, HistogramMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
        revision = ["namespace", "revision"]
        return (
            CounterMetricFamily(
                "relight_router_requests",
                "Requests answered, by class of answer (2xx to 5xx, hangup, cut)",
                labels=[*revision, "code_class"],
            ),
            HistogramMetricFamily(
                "relight_router_request_seconds", "From a request's arrival to the end of its answer", labels=revision
            ),
            GaugeMetricFamily("relight_router_held", "Requests that wait for a replica now", labels=revision),
            GaugeMetricFamily("relight_router_in_flight", "Requests at replicas now", labels=revision),
        )
