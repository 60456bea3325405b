"""What two revisions answered since a moment: from local mode's router, or from Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from relight.decide.canary import Sample
from relight.net.prometheus import Fetch, instant

_FAILED = ("5xx", "cut")
"""Classes of the router's answers that count as failures; who hung up has not seen one."""
_HANGUP = "hangup"


class Samples(Protocol):
    """Where samples come from."""

    def begin(self, revisions: Iterable[str]) -> None:
        """Count from now on."""

    def since(self, revision: str, seconds: float) -> Sample:
        """What a revision answered since ``begin``, which was ``seconds`` ago."""


class RouterSamples:
    """Local mode's router, whose ``/metrics`` counts every request by revision."""

    def __init__(self, url: str, namespace: str, fetch: Fetch) -> None:
        self._url = url.rstrip("/") + "/metrics"
        self._namespace = namespace
        self._fetch = fetch
        self._before: dict[str, Sample] = {}

    def begin(self, revisions: Iterable[str]) -> None:
        self._before = {name: self._read(name) for name in revisions}

    def since(self, revision: str, seconds: float) -> Sample:
        return _minus(self._read(revision), self._before.get(revision, Sample()))

    def _read(self, revision: str) -> Sample:
        from prometheus_client.parser import text_string_to_metric_families

        text = self._fetch(self._url, {}).decode("utf-8", "replace")
        requests = failures = 0
        buckets: list[tuple[float, float]] = []
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = sample.labels
                if (labels.get("namespace"), labels.get("revision")) != (self._namespace, revision):
                    continue
                if sample.name == "relight_router_requests_total" and labels.get("code_class") != _HANGUP:
                    requests += int(sample.value)
                    failures += int(sample.value) if labels.get("code_class") in _FAILED else 0
                elif sample.name == "relight_router_request_seconds_bucket":
                    buckets.append((float(labels["le"]), sample.value))
        return Sample(requests, failures, tuple(sorted(buckets)))


class PrometheusSamples:
    """A Prometheus that reads the functions' own metrics, as ``manifests/components/monitoring`` has it do."""

    LABEL = "serving_knative_dev_revision"
    SHORTEST = 60.0
    """Seconds that a rate needs at least, with a scrape every 15."""

    def __init__(self, url: str, namespace: str, fetch: Fetch) -> None:
        self._url = url
        self._namespace = namespace
        self._fetch = fetch

    def begin(self, revisions: Iterable[str]) -> None:
        """Nothing to remember: Prometheus does."""

    def since(self, revision: str, seconds: float) -> Sample:
        window = f"{max(seconds, self.SHORTEST):.0f}s"
        where = f'namespace="{self._namespace}",{self.LABEL}="{revision}"'
        codes = self._query(f"sum by (code) (increase(relight_requests_total{{{where}}}[{window}]))")
        buckets = self._query(f"sum by (le) (increase(relight_request_duration_seconds_bucket{{{where}}}[{window}]))")
        requests = sum(value for labels, value in codes if labels.get("code") != "499")
        failures = sum(value for labels, value in codes if str(labels.get("code", "")).startswith("5"))
        return Sample(
            round(requests),
            round(failures),
            tuple(sorted((float(labels["le"]), value) for labels, value in buckets)),
        )

    def _query(self, expression: str) -> list[tuple[Mapping[str, str], float]]:
        return instant(self._url, expression, self._fetch)


def _minus(now: Sample, before: Sample) -> Sample:
    """What came after; where a counter began anew, all of it did."""
    if now.requests < before.requests:
        return now
    counts = dict(before.buckets)
    return Sample(
        now.requests - before.requests,
        now.failures - before.failures,
        tuple((bound, count - counts.get(bound, 0.0)) for bound, count in now.buckets),
    )
