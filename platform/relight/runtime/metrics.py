"""A function's metrics, in a registry of its own: a process may hold several functions, and tests many."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


class _Buckets:
    """A histogram that costs a tenth of the library's to observe: every request does. Not for several threads."""

    def __init__(self, name: str, help_text: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._help = help_text
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self) -> Metric:
        """As Prometheus has it: each bucket holds those before it too."""
        buckets, total = [], 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return HistogramMetricFamily(self._name, self._help, buckets=buckets, sum_value=self._sum)


class Metrics(Collector):
    """Few, and each answers a question: how many and with what code, how long, how many now, how long was the start,
    how many rows ride together and what the first of them waited."""

    def __init__(self, queued: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self._by_code: dict[int, int] = {}
        self._duration = _Buckets(
            "relight_request_duration_seconds", "From a request's last byte to its answer", _SECONDS
        )
        self._rows = _Buckets("relight_batch_rows", "Rows of one run of the model", _ROWS)
        self._wait = _Buckets("relight_batch_wait_seconds", "What the first request of a run waited", _SECONDS)
        self._run = _Buckets("relight_batch_run_seconds", "One run of the model", _SECONDS)
        self.replayed = Counter(
            "relight_event_answers_replayed", "Events answered without a run of their own", registry=self.registry
        )
        self._in_flight = 0
        self._own: dict[str, Gauge] = {}
        self._lock = threading.Lock()
        self.registry.register(self)
        in_flight = Gauge("relight_requests_in_flight", "Requests that are not answered yet", registry=self.registry)
        in_flight.set_function(lambda: self._in_flight)
        queue = Gauge("relight_queue_length", "Requests that wait for a thread", registry=self.registry)
        queue.set_function(queued)
        self._load = Gauge(
            "relight_load_seconds", "The start of this process, by phase", ["phase"], registry=self.registry
        )
        self._parts = Gauge(
            "relight_load_part_seconds",
            "Parts of the load as the function tells them",
            ["part"],
            registry=self.registry,
        )

    def began(self) -> None:
        with self._lock:
            self._in_flight += 1

    def ended(self, status: int, seconds: float) -> None:
        """Status 499: the caller hung up before there was an answer."""
        with self._lock:
            self._in_flight -= 1
            self._by_code[status] = self._by_code.get(status, 0) + 1
            self._duration.observe(seconds)

    def ran(self, rows: int, wait: float, seconds: float) -> None:
        """One run of the model: its rows, what the first of them waited, and what it took."""
        with self._lock:
            self._rows.observe(rows)
            self._wait.observe(wait)
            self._run.observe(seconds)

    def loaded(self, phases: Mapping[str, float]) -> None:
        for phase, seconds in phases.items():
            self._load.labels(phase).set(seconds)

    def part(self, name: str, seconds: float) -> None:
        self._parts.labels(name).set(seconds)

    def gauge(self, name: str, help_text: str, value: float) -> None:
        """Set a gauge of the author's own, made when it is first set."""
        with self._lock:
            found = self._own.get(name)
            if found is None:
                found = self._own[name] = Gauge(name, help_text, registry=None)
        found.set(value)

    def collect(self) -> Iterable[Metric]:
        """For the registry."""
        requests = CounterMetricFamily("relight_requests", "Requests answered, by status", labels=["code"])
        with self._lock:
            for code, count in sorted(self._by_code.items()):
                requests.add_metric([str(code)], count)
            families = [one.family() for one in (self._duration, self._rows, self._wait, self._run)]
            own = list(self._own.values())
        return [requests, *families, *(family for gauge in own for family in gauge.collect())]

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)
