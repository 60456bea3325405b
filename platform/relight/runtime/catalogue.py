"""The models that a process serves: what endpoints and the author's code ask for, and a process with one model.

A process with the models of a whole repository has its own (``residents``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from relight.base.errors import NotFound, NotReady
from relight.runtime.answers.statistics import Statistics
from relight.runtime.batcher import Observe
from relight.runtime.model import Model
from relight.runtime.pending import Waiting
from relight.runtime.served import Served, serve
from relight.runtime.workers import Workers
from relight.wire.http import Response

Work = Callable[[Served], "Response | Waiting"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the repository's index. ``details`` is beside what Triton has."""

    name: str
    version: str
    state: str
    reason: str = ""
    details: dict[str, Any] | None = None

    def json(self) -> dict[str, Any]:
        body: dict[str, Any] = {"name": self.name, "version": self.version, "state": self.state, "reason": self.reason}
        return body if self.details is None else body | {"parameters": self.details}


class Catalogue(Protocol):
    """Models by name and version. Nothing blocks: what takes long is a future."""

    @property
    def queued(self) -> int:
        """How many requests wait for a model to compute, or to be loaded."""
        ...

    def use(self, name: str | None, version: str | None, work: Work) -> Response | Waiting:
        """Do something with a loaded model, at once or once it is; it stays loaded until that is done.

        ``name`` None: the model that a request means which names none. NotFound, NotReady, Overloaded.
        """
        ...

    def ready(self, name: str, version: str | None) -> Future[None]:
        """Whether a request for the model would be worked on; the future raises why not."""
        ...

    def names(self) -> Future[list[str]]: ...

    def versions(self, name: str) -> list[str]:
        """The versions of a loaded model that may be asked for; empty where it has none."""
        ...

    def index(self) -> Future[list[Entry]]: ...

    def load(self, name: str, config: str | None) -> Future[None]:
        """Load a model, or load what has changed of it. ``config``: JSON to use for its configuration."""
        ...

    def unload(self, name: str) -> Future[None]:
        """Let go of a model until ``load`` is called for it."""
        ...

    def statistics(self, name: str | None, version: str | None) -> list[dict[str, Any]]:
        """What models have done since this process began; all of them where ``name`` is None."""
        ...

    def stop(self, timeout: float) -> None: ...


def settled(value: Any = None, error: BaseException | None = None) -> Future[Any]:
    """A future that is done already."""
    future: Future[Any] = Future()
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
    return future


class Sole:
    """The one model of a function, loaded with it."""

    def __init__(self, model: Model, queue_limit: int, heard: Observe | None = None) -> None:
        self._model = model
        self._limit = queue_limit
        self._statistics = Statistics()
        self._statistics.heard = heard
        self._served: Served | None = serve(model, queue_limit, self._statistics)
        self._changes = Workers(f"{model.context.model}-load", threads=1, limit=queue_limit)
        self._lock = threading.Lock()
        self._stopped = False

    @property
    def served(self) -> Served:
        served = self._served
        if served is None:
            name = self._model.context.model
            raise NotReady(f"model {name!r} was unloaded; POST /v2/repository/models/{name}/load loads it again")
        return served

    @property
    def queued(self) -> int:
        served = self._served
        return served.queued if served is not None else 0

    def use(self, name: str | None, version: str | None, work: Work) -> Response | Waiting:
        self._check(name, version)
        return work(self.served)

    def ready(self, name: str, version: str | None) -> Future[None]:
        self._check(name, version)
        self.served  # noqa: B018  raises where it is unloaded
        return settled()

    def names(self) -> Future[list[str]]:
        return settled([self._model.context.model])

    def versions(self, name: str) -> list[str]:
        version = self._model.context.version
        return [] if version is None else [version]

    def index(self) -> Future[list[Entry]]:
        context = self._model.context
        state, reason = ("READY", "") if self._served is not None else ("UNAVAILABLE", "unloaded")
        return settled([Entry(context.model, context.version or "", state, reason)])

    def load(self, name: str, config: str | None) -> Future[None]:
        self._check(name, None)
        if config is not None:
            raise NotFound(f"model {name!r} is a function's own, and takes no configuration", param="config")
        return self._changes.submit(self._load)

    def unload(self, name: str) -> Future[None]:
        self._check(name, None)
        return self._changes.submit(self._unload)

    def statistics(self, name: str | None, version: str | None) -> list[dict[str, Any]]:
        if name is not None:
            self._check(name, version)
        found: list[dict[str, Any]] = self._statistics.render()["model_stats"]
        return found

    def stop(self, timeout: float) -> None:
        self._changes.stop(timeout)
        with self._lock:
            self._stopped = True
            served, self._served = self._served, None
        if served is not None:
            served.stop(timeout)

    def _check(self, name: str | None, version: str | None) -> None:
        context = self._model.context
        if name is not None and name != context.model:
            raise NotFound(f"there is no model {name!r} here; {context.model!r} is served", param="model")
        if version is not None and version != context.version:
            have = f"version {context.version} is served" if context.version else "it has no versions"
            raise NotFound(f"there is no version {version!r} of model {context.model!r} here; {have}", param="model")

    def _load(self) -> None:
        if self._served is not None:
            return
        self._model.load()
        self._model.warmup()
        with self._lock:
            if not self._stopped:
                self._served = serve(self._model, self._limit, self._statistics)
                return
        self._model.unload()

    def _unload(self) -> None:
        with self._lock:
            served, self._served = self._served, None
        if served is not None:
            served.stop(UNLOAD_TIMEOUT)


UNLOAD_TIMEOUT = 30.0
"""Seconds that requests in flight are given when their model is unloaded by name."""
