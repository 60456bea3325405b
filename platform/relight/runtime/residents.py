"""The models of a repository, served by one process: loaded when they are asked for, within a budget of memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from relight.base.errors import BadInput, Deadline, NotFound, RelightError
from relight.runtime import changes
from relight.runtime.batcher import Observe
from relight.runtime.catalogue import Entry, Work, settled
from relight.runtime.context import FunctionSettings
from relight.runtime.copies import Copy
from relight.runtime.loading import Source
from relight.runtime.loads import Loads
from relight.runtime.pending import Waiting, chained
from relight.runtime.served import Served
from relight.runtime.waitingroom import told, unloaded
from relight.store.repository import check_name
from relight.wire import modelconfig_text
from relight.wire.http import Response
from relight.wire.modelconfig import ModelConfig

log = logging.getLogger("relight.residents")


class Residents(Collector):
    """A ``Catalogue`` of a whole repository. ``default``: the model that a request means which names none."""

    def __init__(self, settings: FunctionSettings, default: str | None = None) -> None:
        self.settings = settings
        self.default = default
        self._source = Source(settings)
        self._counts: dict[tuple[str, str], int] = {}
        self._count_lock = threading.Lock()
        self.loads = Loads(self._source, self._evicted, self._count)
        self._copies = self.loads.copies
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None

    # For the runtime.

    def preload(self, names: Iterable[str]) -> dict[str, float]:
        """Load models before anyone asks, and wait for that; ``*`` stands for all. What fails is raised.

        The seconds of it that were not loading, by phase.
        """
        wanted = list(names)
        if "*" in wanted:
            wanted = self._source.repository().models()
        spent = dict.fromkeys(("fetch", "warmup"), 0.0)
        for name in wanted:
            copy = self.loads.request(name, None, bounded=False).result()
            for phase in spent:
                spent[phase] += copy.phases.get(phase, 0.0)
            self._copies.give_back(copy)
        return spent

    def watch(self) -> None:
        """Look for changes from now on, where the settings say so. Idempotent."""
        if self.settings.repository_poll and self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="model-watch", daemon=True)
            self._watcher.start()

    @contextmanager
    def lease(self, name: str, version: int | None, timeout: float) -> Iterator[Served]:
        """A loaded model for code in this process; it stays loaded meanwhile. Deadline after ``timeout`` seconds."""
        copy = self._copies.take(name, version)
        if copy is None:
            if self._copies.is_unloaded(name):
                raise unloaded(name)
            future = self.loads.request(name, version)
            try:
                copy = future.result(timeout)
            except TimeoutError:
                if not future.cancel():
                    self._copies.give_back(future.result())
                raise Deadline(f"model {name!r} was not loaded within {timeout:g} s") from None
        try:
            yield copy.served
        finally:
            self._copies.give_back(copy)

    def listen(self, heard: Observe) -> None:
        """Tell of each run of a model from now on: its rows, what the first of them waited, the seconds it took."""
        self.loads.statistics.heard = heard

    # The catalogue.

    @property
    def queued(self) -> int:
        return self.loads.room.waiting + sum(copy.served.queued for copy in self._copies.all())

    def use(self, name: str | None, version: str | None, work: Work) -> Response | Waiting:
        name = self._named(name)
        number = _number(name, version)
        copy = self._copies.take(name, number)
        if copy is not None:
            return self._work(copy, work)
        if self._copies.is_unloaded(name):
            raise unloaded(name)
        return chained(self.loads.request(name, number), lambda copy: self._work(copy, work), self._copies.give_back)

    def ready(self, name: str, version: str | None) -> Future[None]:
        """A model that is not loaded is ready too, if a request would load it."""
        number = _number(self._named(name), version)
        if self._copies.is_unloaded(name):
            raise unloaded(name)
        if number in self._copies.ready(name) or (number is None and self._copies.ready(name)):
            return settled()

        def look() -> None:
            try:
                _, served, _ = self._source.versions(name)
            except RelightError as error:
                raise told(name, error) from error
            if number is not None and number not in served:
                raise NotFound(f"there is no version {number} of model {name!r} that is served", param="model")
            self.loads.room.check((name, number))

        return self.loads.run(look)

    def names(self) -> Future[list[str]]:
        return self.loads.run(lambda: self._source.repository().models())

    def versions(self, name: str) -> list[str]:
        with self._copies.changed:
            known = self._copies.known(name)
            return [str(version) for version in sorted({*known.served, *known.ready})]

    def index(self) -> Future[list[Entry]]:
        def look() -> list[Entry]:
            names = {*self._source.repository().models(), *self._copies.names()}
            return [entry for name in sorted(names) for entry in self._entries(name)]

        return self.loads.run(look)

    def load(self, name: str, config: str | None) -> Future[None]:
        self._named(name)
        text = None if config is None else modelconfig_text.from_json(config, name)
        self._source.use_config(name, text)
        return self.loads.reload(name, everything=True)

    def unload(self, name: str) -> Future[None]:
        return self.loads.unload(self._named(name))

    def statistics(self, name: str | None, version: str | None) -> list[dict[str, Any]]:
        number = None if name is None else _number(name, version)
        found: list[dict[str, Any]] = self.loads.statistics.render(name, None if number is None else str(number))[
            "model_stats"
        ]
        if name is not None and not found:
            raise NotFound(f"model {name!r} was not loaded here yet, and has no statistics", param="model")
        sizes = {(copy.name, str(copy.version)): copy.bytes for copy in self._copies.all()}
        for model in found:
            size = sizes.get((model["name"], model["version"]))
            if size:
                model["memory_usage"] = [{"type": "CPU", "id": 0, "byte_size": size}]
        return found

    def stop(self, timeout: float) -> None:
        self._stopping.set()
        self.loads.stop(timeout)
        if self._watcher is not None:
            self._watcher.join(timeout)

    # Metrics.

    def collect(self) -> Iterator[Metric]:
        """For Prometheus: what is in memory, against the budget, and what came and went."""
        budget = "Bytes that the models of this process may take together; 0: no budget"
        yield GaugeMetricFamily("relight_model_budget_bytes", budget, value=self.settings.memory_budget)
        memory = GaugeMetricFamily(
            "relight_model_memory_bytes", "Measured bytes of each loaded model", labels=["model", "version"]
        )
        copies = list({(copy.name, copy.version): copy for copy in reversed(self._copies.all())}.values())
        loaded = GaugeMetricFamily("relight_models_loaded", "Loaded models, each version", value=len(copies))
        seconds = GaugeMetricFamily(
            "relight_model_load_seconds",
            "The load of each loaded model, by phase",
            labels=["model", "version", "phase"],
        )
        for copy in copies:
            memory.add_metric([copy.name, str(copy.version)], copy.bytes)
            for phase, value in copy.phases.items():
                seconds.add_metric([copy.name, str(copy.version), phase], value)
        yield memory
        yield seconds
        yield loaded
        loads = CounterMetricFamily("relight_model_loads", "Loads of models, by outcome", labels=["model", "outcome"])
        evictions = CounterMetricFamily("relight_model_evictions", "Models that gave way to others", labels=["model"])
        with self._count_lock:
            counts = dict(self._counts)
        for (name, outcome), count in sorted(counts.items()):
            if outcome == "evicted":
                evictions.add_metric([name], count)
            else:
                loads.add_metric([name, outcome], count)
        yield loads
        yield evictions
        hits = CounterMetricFamily(
            "relight_model_cache_requests", "Requests to loaded models that keep answers", labels=["model", "outcome"]
        )
        for copy in copies:
            if (responses := copy.served.responses) is not None:
                hits.add_metric([copy.name, "hit"], responses.hits)
                hits.add_metric([copy.name, "miss"], responses.misses)
        yield hits
        waiting = "Requests that wait for their model to be loaded"
        yield GaugeMetricFamily("relight_model_load_waiting", waiting, value=self.loads.room.waiting)

    def _evicted(self, copy: Copy) -> None:
        self._count(copy.name, "evicted")

    def _count(self, name: str, outcome: str) -> None:
        with self._count_lock:
            self._counts[name, outcome] = self._counts.get((name, outcome), 0) + 1

    # Inside.

    def _named(self, name: str | None) -> str:
        if name is not None:
            try:
                return check_name(name)
            except BadInput as error:
                raise NotFound(error.message, param="model") from None
        if self.default is None:
            raise NotFound("several models are served here; name one by its path, /v2/models/NAME/infer")
        return self.default

    def _work(self, copy: Copy, work: Work) -> Response | Waiting:
        """Do the work with a copy that is held; it is given back when the work is done."""
        try:
            answer = work(copy.served)
        except BaseException:
            self._copies.give_back(copy)
            raise
        if isinstance(answer, Waiting):
            answer.future.add_done_callback(lambda _: self._copies.give_back(copy))
        else:
            self._copies.give_back(copy)
        return answer

    def _entries(self, name: str) -> list[Entry]:
        problem = ""
        gone = False
        try:
            _, served, _ = self._source.versions(name)
        except NotFound:
            served, gone = [], True
        except RelightError as error:
            problem = error.message
            served = ModelConfig().version_policy.pick(self._source.repository().versions(name))
        ready = self._copies.ready(name)
        leaving = {copy.version for copy in self._copies.all() if copy.name == name} - ready.keys()
        with self._copies.changed:
            known = self._copies.known(name) if served or ready else None
            notes = dict(known.notes) if known is not None else {}
            loading = set(known.loading) if known is not None else set()
            is_unloaded = known is not None and known.unloaded
        entries = []
        for version in sorted({*served, *ready, *leaving}):
            details = self._details(name, ready.get(version))
            if version in ready:
                entries.append(Entry(name, str(version), "READY", "", details))
            elif version in leaving:
                entries.append(Entry(name, str(version), "UNLOADING", notes.get(version, ""), details))
            elif version in loading:
                entries.append(Entry(name, str(version), "LOADING", "", details))
            else:
                reason = "unloaded" if is_unloaded else notes.get(version) or "not loaded: the first request loads it"
                entries.append(Entry(name, str(version), "UNAVAILABLE", problem or reason, details))
        if gone:
            return entries
        return entries or [Entry(name, "", "UNAVAILABLE", problem or "there is no version that is served")]

    def _details(self, name: str, copy: Copy | None) -> dict[str, Any]:
        with self._count_lock:
            evictions = self._counts.get((name, "evicted"), 0)
        details: dict[str, Any] = {"memory_budget_bytes": self.settings.memory_budget, "evictions": evictions}
        if copy is not None:
            details["memory_bytes"] = copy.bytes
        return details

    def _watch(self) -> None:
        while not self._stopping.wait(self.settings.repository_poll):
            for name in self._copies.names():
                try:
                    self._look(name)
                except Exception as error:
                    log.warning("model.not_watched model=%s error=%s: it is looked at again", name, error)

    def _look(self, name: str) -> None:
        seen = changes.fingerprint(self._source.repository(), name)
        with self._copies.changed:
            known = self._copies.known(name)
            if known.seen == seen:
                return
            known.seen = seen
        self.loads.room.forgive(name)
        try:
            self.loads.reload(name, everything=False).result()
        except RelightError as error:
            log.info("model.not_changed model=%s reason=%s", name, error.message)
        if not seen:
            self._copies.forget(name)


def _number(name: str, version: str | None) -> int | None:
    if version is None:
        return None
    if not (version.isascii() and version.isdecimal() and 0 < len(version) < 19):
        raise NotFound(f"there is no version {version!r} of model {name!r}; versions are numbers", param="model")
    return int(version)
