"""A function's metrics, in a registry of its own: a process may hold several functions, and tests many."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

CONTENT_TYPE = CONTENT_TYPE_LATEST
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Metrics:
    """Few, and each answers a question: how many and with what code, how long, how many now, how long was the start."""

    def __init__(self, queued: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        requests = Counter("relight_requests", "Requests answered, by status", ["code"], registry=self.registry)
        self._requests = requests
        self._by_code: dict[int, Counter] = {}
        self._duration = Histogram(
            "relight_request_duration_seconds",
            "From a request's last byte to its answer",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.replayed = Counter(
            "relight_event_answers_replayed", "Events answered without a run of their own", registry=self.registry
        )
        self._in_flight = 0
        self._lock = threading.Lock()
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
            child = self._by_code.get(status)
            if child is None:
                child = self._by_code[status] = self._requests.labels(str(status))
        child.inc()
        self._duration.observe(seconds)

    def loaded(self, phases: Mapping[str, float]) -> None:
        for phase, seconds in phases.items():
            self._load.labels(phase).set(seconds)

    def part(self, name: str, seconds: float) -> None:
        self._parts.labels(name).set(seconds)

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)
