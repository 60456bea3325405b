"""The queue in front of a model: requests in, futures out, one thread per model instance.

The interface is what every host builds on: ``submit`` returns at once, a future that is cancelled while it waits is
never computed, and a full queue is an answer and not a wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from relight.runtime.workers import Workers
from relight.wire.tensors import Array

Compute = Callable[[dict[str, Array]], dict[str, Array]]


@dataclass(frozen=True, slots=True)
class Job:
    """One request for a model: tensors that fit its specification. Only jobs with equal parameters may be merged."""

    inputs: dict[str, Array]
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Computed:
    """What came out, and the seconds that the request waited and was computed."""

    outputs: dict[str, Array]
    queue: float
    infer: float


class Batcher:
    """Runs ``compute`` for one job at a time, oldest first; ``limit`` jobs may wait."""

    def __init__(self, name: str, compute: Compute, limit: int) -> None:
        self._compute = compute
        self._workers = Workers(f"{name}-model", threads=1, limit=limit)

    @property
    def queued(self) -> int:
        return self._workers.queued

    def submit(self, job: Job) -> Future[Computed]:
        """Queue a job. Overloaded, with the seconds to wait, when the queue is full; NotReady after ``stop``."""
        queued = time.perf_counter()

        def work() -> Computed:
            begun = time.perf_counter()
            outputs = self._compute(job.inputs)
            return Computed(outputs, begun - queued, time.perf_counter() - begun)

        return self._workers.submit(work)

    def stop(self, timeout: float) -> None:
        """Refuse what waits and give the running job ``timeout`` seconds. Idempotent."""
        self._workers.stop(timeout)
