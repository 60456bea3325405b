"""Cold starts by phase: hold, fork, import, fetch, load, warm-up, first answer. They add up to what the caller waited.

hold: from the arrival of the request that woke the revision until its start was decided. fork, import, fetch, load and
warm-up: as the replica itself measured them, consecutive from that decision. first answer: from the replica's word that
it is ready until the first byte of the answer.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Histogram

from relight.local.recording import Recorder
from relight.local.serving.objects import CONFIGURATION, SERVICE, labels_of
from relight.local.serving.types import RevisionKey

log = logging.getLogger("relight.local.serving")

PHASES = ("hold", "fork", "import", "fetch", "load", "warmup", "first_answer")
COLD_START = "relight.dev/cold-start"
"""Annotation of the Event: the cold start as JSON, in seconds."""
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


@dataclass(frozen=True)
class ColdStart:
    """One cold start; seconds. ``total`` is measured by itself, from the arrival to the first byte of the answer."""

    pod: str
    phases: Mapping[str, float]
    total: float

    def document(self) -> dict[str, object]:
        shown = {name: round(self.phases.get(name, 0.0), 6) for name in PHASES}
        return {"pod": self.pod, "total": round(self.total, 6), "phases": shown}


class ColdStarts:
    """Logs and counts them, and records each as an Event of its Revision."""

    def __init__(self, registry: CollectorRegistry, recorder: Recorder) -> None:
        self._recorder = recorder
        self._histogram = Histogram(
            "relight_cold_start_seconds",
            "Cold starts by phase",
            ["function", "revision", "phase"],
            buckets=_BUCKETS,
            registry=registry,
        )

    def record(self, revision: Mapping[str, Any], cold: ColdStart) -> None:
        meta = revision["metadata"]
        key = RevisionKey(meta["namespace"], meta["name"])
        labels = labels_of(revision)
        function = f"{key.namespace}/{labels.get(SERVICE) or labels.get(CONFIGURATION) or key.name}"
        parts = ", ".join(f"{name} {cold.phases.get(name, 0.0) * 1000:.1f}" for name in PHASES)
        log.info("coldstart revision=%s pod=%s total=%.1f ms: %s", key, cold.pod, cold.total * 1000, parts)
        message = f"answered from zero in {cold.total * 1000:.0f} ms ({parts})"
        annotations = {COLD_START: json.dumps(cold.document())}
        self._recorder.record(revision, "Normal", "ColdStart", message, annotations)
        for name in PHASES:
            self._histogram.labels(function, str(key), name).observe(cold.phases.get(name, 0.0))
        self._histogram.labels(function, str(key), "total").observe(cold.total)
