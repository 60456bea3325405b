"""What Triton calls a model's statistics: how many inferences and executions, how long they took, by size of batch.

The numbers are counted where all of them pass: ``Counted`` stands in front of a model's queue and sees every request,
``ModelCounts.measured`` goes around what the queue runs and sees every execution. Durations are cumulative nanoseconds.
Converting inputs and outputs is a part of ``compute_infer``, for the queue runs the model's own code as one thing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, cast

from relight.runtime.batcher import Batcher, Computed, Job, Observe
from relight.runtime.tickets import Ticket
from relight.wire.tensors import Array

Compute = Callable[[dict[str, Array]], dict[str, Array]]


@dataclass
class Duration:
    """How often, and how long in all."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds

    def render(self) -> dict[str, int]:
        return {"count": self.count, "ns": round(self.seconds * 1e9)}


@dataclass
class ModelCounts:
    """The counts of one version of a model. ``batched``: its first dimension is a batch, whose rows are inferences."""

    name: str
    version: str | None
    batched: bool
    last_inference: int = 0
    """Milliseconds since 1970 of the latest execution's beginning; 0: there was none."""
    inferences: int = 0
    executions: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    infer: Duration = field(default_factory=Duration)
    hit: Duration = field(default_factory=Duration)
    miss: Duration = field(default_factory=Duration)
    batches: dict[int, Duration] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def rows(self, inputs: dict[str, Array]) -> int:
        """Inferences in one request, or one execution."""
        if not self.batched:
            return 1
        for array in inputs.values():
            return len(array)
        return 0

    def measured(self, compute: Compute) -> Compute:
        """``compute``, each run of it counted as an execution; one that raises is none."""

        def run(inputs: dict[str, Array]) -> dict[str, Array]:
            moment, begun = time.time(), time.perf_counter()
            outputs = compute(inputs)
            seconds = time.perf_counter() - begun
            with self.lock:
                self.last_inference = round(moment * 1000)
                self.executions += 1
                self.batches.setdefault(self.rows(inputs), Duration()).add(seconds)
            return outputs

        return run

    def ended(self, ticket: Ticket) -> None:
        """A request was answered, or not."""
        seconds = time.perf_counter() - ticket.arrived
        good = not ticket.cancelled() and ticket.exception() is None
        with self.lock:
            if not good:
                self.fail.add(seconds)
                return
            computed = ticket.result()
            self.inferences += self.rows(ticket.job.inputs)
            self.success.add(seconds)
            self.queue.add(computed.queue)
            self.infer.add(computed.infer)

    def found(self, rows: int, seconds: float) -> None:
        """A request was answered from what is kept: an inference, and no execution."""
        with self.lock:
            self.inferences += rows
            self.success.add(seconds)
            self.hit.add(seconds)

    def missed(self, seconds: float) -> None:
        """A request was looked for in vain, and its answer kept; that took so long beside the model."""
        with self.lock:
            self.miss.add(seconds)

    def render(self) -> dict[str, Any]:
        """As Triton has it, in JSON."""
        with self.lock:
            stats = {
                "success": self.success,
                "fail": self.fail,
                "queue": self.queue,
                "compute_input": Duration(self.infer.count),
                "compute_infer": self.infer,
                "compute_output": Duration(self.infer.count),
                "cache_hit": self.hit,
                "cache_miss": self.miss,
            }
            batches = [
                {
                    "batch_size": size,
                    "compute_input": Duration(spent.count).render(),
                    "compute_infer": spent.render(),
                    "compute_output": Duration(spent.count).render(),
                }
                for size, spent in sorted(self.batches.items())
            ]
            return {
                "name": self.name,
                "version": self.version or "",
                "last_inference": self.last_inference,
                "inference_count": self.inferences,
                "execution_count": self.executions,
                "inference_stats": {name: spent.render() for name, spent in stats.items()},
                "batch_stats": batches,
                "memory_usage": [],
            }


class Counted:
    """A model's queue whose requests are counted."""

    def __init__(self, batcher: Batcher, counts: ModelCounts) -> None:
        self._batcher = batcher
        # Every ticket is one of the batcher's.
        self._ended = cast("Callable[[Future[Computed]], None]", counts.ended)

    @property
    def queued(self) -> int:
        return self._batcher.queued

    def submit(self, job: Job) -> Future[Computed]:
        ticket = self._batcher.submit(job)
        ticket.add_done_callback(self._ended)
        return ticket

    def stop(self, timeout: float) -> None:
        self._batcher.stop(timeout)


class Statistics:
    """The counts of all models of one process."""

    def __init__(self) -> None:
        self.heard: Observe | None = None
        """Told of each run of any model."""
        self._counts: dict[tuple[str, str | None], ModelCounts] = {}

    def ran(self, rows: int, wait: float, seconds: float) -> None:
        if self.heard is not None:
            self.heard(rows, wait, seconds)

    def of(self, name: str, version: str | None, *, batched: bool) -> ModelCounts:
        """The counts of one version of a model; they go on where it was loaded before."""
        return self._counts.setdefault((name, version), ModelCounts(name, version, batched))

    def render(self, name: str | None = None, version: str | None = None) -> dict[str, Any]:
        """Of all models, of one, or of one version of it; the caller has looked whether there is such a one."""
        chosen = [
            counts
            for counts in self._counts.values()
            if name in (None, counts.name) and version in (None, counts.version)
        ]
        return {"model_stats": [counts.render() for counts in chosen]}
