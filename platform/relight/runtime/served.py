"""A model at work: the model, its queue and its figures."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future

from relight.runtime.batcher import Batcher, Computed, Job
from relight.runtime.model import Model
from relight.runtime.statistics import Statistics
from relight.wire.tensors import Array

log = logging.getLogger("relight.served")


class Served:
    """One loaded model. ``submit`` at any time, ``stop`` once nothing more comes."""

    def __init__(self, model: Model, queue_limit: int) -> None:
        self.model = model
        self.statistics = Statistics()
        self.batcher = Batcher(model.context.model, self._compute, queue_limit)

    @property
    def name(self) -> str:
        return self.model.context.model

    @property
    def version(self) -> str | None:
        return self.model.context.version

    def submit(self, job: Job) -> Future[Computed]:
        """Queue a job; as ``Batcher.submit``."""
        rows = _rows(self.model, job.inputs)
        begun = time.monotonic()
        future = self.batcher.submit(job)

        def done(future: Future[Computed]) -> None:
            if future.cancelled() or future.exception() is not None:
                self.statistics.failed(time.monotonic() - begun)
            else:
                computed = future.result()
                self.statistics.succeeded(rows, computed.queue, computed.infer)

        future.add_done_callback(done)
        return future

    def stop(self, timeout: float) -> None:
        """Refuse what waits, give what runs ``timeout`` seconds, and let go of the model. Never raises."""
        self.batcher.stop(timeout)
        try:
            self.model.unload()
        except Exception:
            log.exception("unload.failed model=%s version=%s: it is let go of all the same", self.name, self.version)

    def _compute(self, inputs: dict[str, Array]) -> dict[str, Array]:
        begun = time.perf_counter()
        outputs = self.model.compute(inputs)
        self.statistics.executed(_rows(self.model, inputs), time.perf_counter() - begun)
        return outputs


def _rows(model: Model, inputs: dict[str, Array]) -> int:
    """Rows of a request, for the figures; 1 where the first dimension is no batch."""
    if model.max_batch_size <= 0:
        return 1
    first = next(iter(inputs.values()), None)
    return len(first) if first is not None and first.ndim else 1
