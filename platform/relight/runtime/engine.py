"""One function at work in one process: its lifecycle, its threads, its endpoints. Hosts talk to this alone."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any

from relight.base.errors import Failed, LoadFailed, NotFound, NotReady, RelightError
from relight.runtime import endpoints, loader
from relight.runtime.catalogue import Catalogue, Sole
from relight.runtime.context import FunctionSettings
from relight.runtime.dedup import Dedup
from relight.runtime.function import Function
from relight.runtime.lifecycle import Lifecycle, Listener, State
from relight.runtime.metrics import Metrics
from relight.runtime.model import Model
from relight.runtime.modelserver import ModelServer
from relight.runtime.pending import Pending, Waiting
from relight.runtime.shareddedup import Answers, SharedDedup
from relight.runtime.step import Step
from relight.runtime.timeline import Timeline
from relight.runtime.workers import RETRY_AFTER, Workers
from relight.wire.http import Request, Response

if TYPE_CHECKING:
    from relight.runtime.forwarding import Forwarding
    from relight.runtime.residents import Residents

log = logging.getLogger("relight.engine")

EVENT_THREADS = 4
"""Threads for a model's ``event_inputs`` and ``event_reply``; each waits for the model while it computes."""
STOP_TIMEOUT = 5.0
"""Seconds for work that still runs when the process stops; hosts stop only when nothing is in flight."""
HUNG_UP = 499
"""The status that a request is counted under whose caller went away (nginx's number)."""


class Engine:
    """``start`` loads in a thread and returns at once; ``dispatch`` answers at any time; ``stop`` ends it, once."""

    def __init__(
        self, source: Callable[[], Function], settings: FunctionSettings, timeline: Timeline | None = None
    ) -> None:
        self.settings = settings
        self.lifecycle = Lifecycle()
        self.timeline = timeline or Timeline()
        self.metrics = Metrics(self._queued)
        self.dedup: Dedup | SharedDedup = Dedup(settings.dedup_ttl, on_replay=self.metrics.replayed.inc)
        self._source = source
        self._function: Function | None = None
        self._models: Catalogue | None = None
        self._behind: Residents | None = None
        self._forwarding: Forwarding | None = None
        self._workers: Workers | None = None
        self._admits = True

    # Lifecycle.

    def start(self) -> None:
        """Begin to load, in a thread. Idempotent."""
        if self.lifecycle.move(State.LOADING):
            threading.Thread(target=self._load, name="load", daemon=True).start()

    def drain(self) -> None:
        """Become unready; what comes is still taken, for it may have been on its way. Idempotent."""
        self.lifecycle.move(State.DRAINING, "draining")

    def refuse(self) -> None:
        """From now on answer new requests with 503 and Retry-After."""
        self._admits = False

    def stop(self) -> None:
        """End everything: the door first, then the queue, then what the function holds. Idempotent."""
        self.drain()
        self.refuse()
        if not self.lifecycle.move(State.STOPPED, "stopped"):
            return
        # A step's threads use its models, and a model's threads wait for it.
        for part in (self._forwarding, self._models, self._workers, self._behind):
            if part is not None:
                part.stop(STOP_TIMEOUT)
        if isinstance(self.dedup, SharedDedup):
            self.dedup.stop(STOP_TIMEOUT)
        if self._function is not None and not isinstance(self._function, Model):
            self._unload(self._function)

    def listen(self, listener: Listener) -> None:
        """Hear of every move of the lifecycle, in the thread that makes it."""
        self.lifecycle.listen(listener)

    def alive(self) -> tuple[bool, str]:
        """Whether the process is worth keeping: always, while it can say so."""
        return True, "OK"

    def ready(self) -> tuple[bool, str]:
        state = self.lifecycle.state
        if state is State.READY:
            return True, "OK"
        return False, self.lifecycle.reason or state.value

    def _load(self) -> None:
        try:
            function = loader.load(self._source, self.settings, self.timeline, self._report, self.metrics.gauge)
            self._share_answers(function)
        except BaseException as error:  # sys.exit in an author's code included: it must not pass for a clean end.
            reason = f"{self.timeline.current} failed: {_last_line(error)}"
            if self.lifecycle.state is not State.LOADING:
                log.warning("load.abandoned reason=%s", reason)
                return
            log.error(
                "load.failed phase=%s: every request is refused from now on", self.timeline.current, exc_info=error
            )
            self.lifecycle.move(State.FAILED, reason)
            return
        self._function = function
        name = function.context.name
        if isinstance(function, Model):
            self._models = Sole(function, self.settings.queue_limit, self.metrics.ran)
            self._workers = Workers(f"{name}-events", EVENT_THREADS, self.settings.queue_limit)
        elif isinstance(function, ModelServer):
            self._models = function.residents
            self._watch(function.residents)
            self._workers = Workers(f"{name}-events", EVENT_THREADS, self.settings.queue_limit)
            self._forwarding = self._forward()
        elif isinstance(function, Step):
            function.models.when_used(self._watch)
            self._workers = Workers(f"{name}-step", function.concurrency, self.settings.queue_limit)
        self.metrics.loaded(self.timeline.phases)
        if self.lifecycle.move(State.READY):
            log.info("load.done %s", " ".join(f"{k}={v:.3f}" for k, v in self.timeline.phases.items()))
        else:
            self._unload(function)

    def _share_answers(self, function: Function) -> None:
        """Where replicas are to know of each other's answers, look them up in Redis from now on."""
        url, memory = self.settings.dedup_redis, self.dedup
        if url is not None and isinstance(memory, Dedup):
            answers = Answers(url, function.context.source, self.settings.dedup_ttl)
            self.dedup = SharedDedup(memory, answers, on_replay=self.metrics.replayed.inc)

    def _watch(self, residents: Residents) -> None:
        self._behind = residents
        residents.listen(self.metrics.ran)
        self.metrics.registry.register(residents)
        residents.watch()

    def _forward(self) -> Forwarding | None:
        if not self.settings.own_functions:
            return None
        from relight.runtime.forwarding import Forwarding

        return Forwarding(
            self.settings.own_functions,
            self.settings.forward_seconds,
            router=self.settings.environ.get("RELIGHT_ROUTER"),
            queue_limit=self.settings.queue_limit,
            registry=self.metrics.registry,
        )

    def _unload(self, function: Function) -> None:
        try:
            function.unload()
        except Exception:
            log.exception("unload.failed: the process ends all the same")

    def _report(self, part: str, seconds: float) -> None:
        log.info("load.part part=%s seconds=%.3f", part, seconds)
        self.metrics.part(part, seconds)

    def _queued(self) -> int:
        parts = (self._models, self._workers)
        return sum(part.queued for part in parts if part is not None)

    # What endpoints ask for.

    @property
    def function(self) -> Function:
        """The function, if it can work now; otherwise the error that says why not."""
        state, reason = self.lifecycle.state, self.lifecycle.reason
        function = self._function
        if state is State.FAILED:
            raise LoadFailed(f"the function's {reason}")
        if not self._admits or state is State.STOPPED:
            raise NotReady("this process is stopping", retry_after=RETRY_AFTER)
        if function is None or self._workers is None or state in (State.CREATED, State.LOADING):
            raise NotReady("the function is still loading", retry_after=RETRY_AFTER)
        return function

    @property
    def models(self) -> Catalogue:
        """The models that are served; NotFound where the function is a step."""
        function = self.function
        if self._models is None:
            raise NotFound(f"{function.context.name!r} is a step and serves no model")
        return self._models

    def elsewhere(self, model: str, request: Request, here: Callable[[], Response | Waiting]) -> Response | Waiting:
        """The answer of the model's own function, where a setting names one that runs; else ``here``."""
        self.function  # noqa: B018  raises where nothing is answered at all
        return here() if self._forwarding is None else self._forwarding.take(model, request, here)

    @property
    def workers(self) -> Workers:
        """Threads for the author's code."""
        self.function  # noqa: B018  raises where there are none
        assert self._workers is not None
        return self._workers

    # What hosts call.

    def dispatch(self, request: Request) -> Response | Pending:
        """Answer a request, or say what to wait for. Never raises."""
        begun = time.monotonic()
        counted = not endpoints.uncounted(request.path)
        if counted:
            self.metrics.began()
        try:
            answer = endpoints.answer(self, request)
        except Exception as error:
            answer = endpoints.failure(request, _known(error))
        if isinstance(answer, Waiting):
            return self._pending(request, answer, begun)
        if counted:
            self.metrics.ended(answer.status, time.monotonic() - begun)
        return endpoints.completed(request, answer)

    def _pending(self, request: Request, waiting: Waiting, begun: float) -> Pending:
        def respond() -> Response:
            try:
                response = waiting.finish(_result(waiting.future))
            except Exception as error:
                response = endpoints.failure(request, _known(error))
            self.metrics.ended(response.status, time.monotonic() - begun)
            return endpoints.completed(request, response)

        def abandon() -> None:
            waiting.future.cancel()
            self.metrics.ended(HUNG_UP, time.monotonic() - begun)

        return Pending(waiting.future, respond, abandon)


def _result(future: Future[Any]) -> Any:
    try:
        return future.result(timeout=0)
    except CancelledError:
        raise NotReady("the request was cancelled", retry_after=RETRY_AFTER) from None
    except Exception:
        raise
    except BaseException as error:  # An author's sys.exit, carried here by the future.
        raise _unknown(error) from error


def _known(error: Exception) -> RelightError:
    """An error that may be told. Any other's text stays in the log: it may hold another's data."""
    return error if isinstance(error, RelightError) else _unknown(error)


def _unknown(error: BaseException) -> Failed:
    log.error("request.failed: the caller gets a 500 without this text", exc_info=error)
    return Failed(f"the function failed on this request ({type(error).__name__}); its log says where")


def _last_line(error: BaseException) -> str:
    if isinstance(error, RelightError):
        return error.message
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[-1]}" if text else type(error).__name__
