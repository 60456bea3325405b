"""A model at work: the model, its queue and its figures."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future

from relight.runtime.answers.statistics import Counted, ModelCounts, Statistics
from relight.runtime.batcher import Computed, Job, Observe, for_model
from relight.runtime.model import Model
from relight.runtime.responses import Responses, key_of

log = logging.getLogger("relight.served")


class Served:
    """One loaded model. ``submit`` at any time, ``stop`` once nothing more comes."""

    def __init__(self, model: Model, queue_limit: int, counts: ModelCounts, observe: Observe) -> None:
        self.model = model
        config = getattr(model, "config", None)
        self.responses = Responses() if config is not None and config.response_cache else None
        batcher = for_model(model, queue_limit, observe, counts.measured(model.compute))
        self._queue = Counted(batcher, counts)
        self._counts = counts

    @property
    def name(self) -> str:
        return self.model.context.model

    @property
    def version(self) -> str | None:
        return self.model.context.version

    @property
    def queued(self) -> int:
        """How many requests wait."""
        return self._queue.queued

    def submit(self, job: Job) -> Future[Computed]:
        """Queue a job; as ``Batcher.submit``. Where answers are kept, an equal one of before is the answer."""
        if self.responses is None:
            return self._queue.submit(job)
        return self._kept(job, self.responses)

    def _kept(self, job: Job, responses: Responses) -> Future[Computed]:
        begun = time.perf_counter()
        key = key_of(job)
        outputs = responses.get(key)
        looked = time.perf_counter() - begun
        if outputs is not None:
            self._counts.found(self._counts.rows(job.inputs), looked)
            answered: Future[Computed] = Future()
            answered.set_result(Computed(outputs, 0.0, 0.0))
            return answered

        def keep(done: Future[Computed]) -> None:
            if not done.cancelled() and done.exception() is None:
                begun = time.perf_counter()
                responses.put(key, done.result().outputs)
                self._counts.missed(looked + time.perf_counter() - begun)

        future = self._queue.submit(job)
        future.add_done_callback(keep)
        return future

    def stop(self, timeout: float) -> None:
        """Refuse what waits, give what runs ``timeout`` seconds, and let go of the model. Never raises."""
        self._queue.stop(timeout)
        try:
            self.model.unload()
        except Exception:
            log.exception("unload.failed model=%s version=%s: it is let go of all the same", self.name, self.version)


def serve(model: Model, queue_limit: int, statistics: Statistics) -> Served:
    """Put a loaded model to work. Its figures go on where it was loaded before."""
    context = model.context
    counts = statistics.of(context.model, context.version, batched=model.max_batch_size > 0)
    return Served(model, queue_limit, counts, statistics.ran)
