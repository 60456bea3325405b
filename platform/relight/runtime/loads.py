"""Bringing models into a process's memory, one after another, and making room for them.

Finding and fetching go on in a few threads; whatever changes what is in memory happens in one thread, in order. So two
loads never compete for the same room, and what was admitted fits. Requests wait for a load as futures, bounded in
number and time; a load that failed is not tried again for a while, and its reason is told to all who ask meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from relight.base.errors import (
    Deadline,
    LoadFailed,
    NoSpace,
    NotFound,
    NotReady,
    OverBudget,
    Overloaded,
    RelightError,
)
from relight.decide import residency
from relight.runtime import memory
from relight.runtime.answers.statistics import Statistics
from relight.runtime.copies import Copies, Copy, Failure
from relight.runtime.deadlines import Deadlines
from relight.runtime.loading import Fetch, Source
from relight.runtime.measuring import Measurements
from relight.runtime.served import serve
from relight.runtime.workers import RETRY_AFTER, Workers

log = logging.getLogger("relight.loads")

FETCHERS = 2
"""Models that are looked for and fetched at the same time: each fetch is itself in parallel."""
FAILED_FOR = 30.0
"""Seconds in which a load that failed is not tried again: it must not become a storm, and may heal by itself."""
UNKNOWN_FOR = 1.0
"""Seconds in which an unknown model is not looked for again."""
UNLOAD_TIMEOUT = 30.0
"""Seconds for a computation that still runs when its model goes; nobody waits for its result then."""
_TOLD_AS_THEY_ARE = (NotFound, OverBudget, NoSpace, Deadline, Overloaded, NotReady, LoadFailed)
_PASSING = (Deadline, Overloaded, NotReady)


@dataclass(eq=False)
class _Coming:
    """A model that somebody waits for. ``version`` None: the newest that can be loaded."""

    name: str
    version: int | None
    waiters: list[Future[Copy]] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, int | None]:
        return self.name, self.version


class Loads:
    """Loads, reloads and unloads. Every method returns at once; ``stop`` ends what goes on."""

    def __init__(self, source: Source, evicted: Callable[[Copy], None], loaded: Callable[[str, str], None]) -> None:
        """``evicted`` is told of each copy that gave way, ``loaded`` of each load by model and outcome."""
        self.source = source
        self.copies = Copies(self._dispose_later)
        self.statistics = Statistics()
        self.measurements = Measurements(source.cache, source.settings)
        settings = source.settings
        self._settings = settings
        self._evicted = evicted
        self._loaded = loaded
        self._lock = threading.Lock()
        self._coming: dict[tuple[str, int | None], _Coming] = {}
        self._failures: dict[tuple[str, int | None], Failure] = {}
        self._fetchers = Workers("model-fetch", FETCHERS, settings.queue_limit)
        self._loader = Workers("model-load", 1, 4 * settings.queue_limit)
        self._deadlines = Deadlines("model-wait")
        self._stopped = False

    @property
    def waiting(self) -> int:
        """Requests that wait for a model."""
        with self._lock:
            return sum(len(coming.waiters) for coming in self._coming.values())

    def request(self, name: str, version: int | None, *, bounded: bool = True) -> Future[Copy]:
        """A copy of a model, held for the caller once the future is done. Raises what is known at once.

        ``bounded`` False: however long it takes, for a start that nobody waits for yet.
        """
        self.check(name, version)
        with self._lock:
            if sum(len(coming.waiters) for coming in self._coming.values()) >= self._settings.queue_limit:
                raise Overloaded(
                    f"{self._settings.queue_limit} requests wait for models to be loaded", retry_after=RETRY_AFTER
                )
            future: Future[Copy] = Future()
            coming = self._coming.get((name, version))
            begins = coming is None
            if coming is None:
                coming = self._coming[name, version] = _Coming(name, version)
            coming.waiters.append(future)
        wait = self._settings.load_wait
        if bounded:
            self._deadlines.after(wait, lambda: self._late(coming, future, wait))
        if begins:
            self._step(coming, self._fetchers, lambda: self._find(coming))
        return future

    def check(self, name: str, version: int | None) -> None:
        """Raise why a model could not be loaded a short while ago."""
        with self._lock:
            failure = self._failures.get((name, version))
        if failure is not None and not failure.is_over:
            raise _again(failure.error)

    def reload(self, name: str, *, everything: bool) -> Future[None]:
        """Load what has changed of a model: each new copy takes over when it is ready, then what is not served goes.

        ``everything``: every version that its policy serves; otherwise the newest and those that are loaded now, and
        nothing where none is.
        """
        done: Future[None] = Future()

        def plan() -> None:
            try:
                fetches, leaving = self._plan(name, everything)
                self._submit(self._loader, lambda: self._apply(done, name, fetches, leaving), done)
            except Exception as error:
                done.set_exception(error)

        self._submit(self._fetchers, plan, done)
        return done

    def unload(self, name: str) -> Future[None]:
        """No request gets the model any more, until it is loaded by name; it goes when nothing of it is in flight."""
        done: Future[None] = Future()

        def work() -> None:
            try:
                copies = list(self.copies.ready(name).values())
                if not copies:
                    self.source.versions(name, fresh=False)  # NotFound for an unknown one
                with self.copies.changed:
                    self.copies.known(name).unloaded = True
                self._let_go(copies, "unloaded")
                done.set_result(None)
            except Exception as error:
                done.set_exception(error)

        self._submit(self._loader, work, done)
        return done

    def run(self, work: Callable[[], Any], done: Future[Any]) -> None:
        """Do something that asks the repository, in a thread that may; the result goes to ``done``."""

        def attempt() -> None:
            try:
                done.set_result(work())
            except Exception as error:
                done.set_exception(error)

        self._submit(self._fetchers, attempt, done)

    def forgive(self, name: str) -> None:
        """Try again what has failed of a model: it was changed."""
        with self._lock:
            for key in [key for key in self._failures if key[0] == name]:
                del self._failures[key]

    def stop(self, timeout: float) -> None:
        """Refuse who waits, and let go of all models. Idempotent."""
        with self._lock:
            self._stopped = True
            coming, self._coming = list(self._coming.values()), {}
        self.measurements.stop()
        self._deadlines.stop()
        for one in coming:
            self._settle(one, error=NotReady("this process is stopping", retry_after=RETRY_AFTER))
        with self.copies.changed:
            self.copies.changed.notify_all()
        self._fetchers.stop(timeout)
        self._loader.stop(timeout)
        copies = self.copies.all()
        self.copies.retire(copies, "this process is stopping")
        for copy in copies:
            self._dispose(copy, timeout)

    # In the threads that fetch.

    def _find(self, coming: _Coming) -> None:
        version = coming.version
        try:
            _, served, files = self.source.versions(coming.name)
            self.copies.serves(coming.name, served)
            if version is None:
                version = self._newest(coming.name, served)
            elif version not in served:
                have = ", ".join(map(str, served)) or "none"
                raise NotFound(
                    f"there is no version {version} of model {coming.name!r}; its versions served are {have}",
                    param="model",
                )
            fetch = self.source.fetch(coming.name, version, files)
        except Exception as error:
            self._failed(coming, version, error)
            return
        self._step(coming, self._loader, lambda: self._bring(coming, fetch))

    def _newest(self, name: str, served: list[int]) -> int:
        if not served:
            raise NotFound(f"model {name!r} has none of the versions that its version_policy serves", param="model")
        with self._lock:
            failures = {version: self._failures.get((name, version)) for version in served}
        failed = {version: failure.error for version, failure in failures.items() if failure and not failure.is_over}
        good = [version for version in served if version not in failed]
        if not good:
            raise _again(failed[max(failed)])
        return max(good)

    def _plan(self, name: str, everything: bool) -> tuple[list[Fetch], list[Copy]]:
        ready = self.copies.ready(name)
        try:
            _, served, files = self.source.versions(name)
        except NotFound:
            if everything or not ready:
                raise
            return [], list(ready.values())
        self.copies.serves(name, served)
        if everything:
            self.forgive(name)
            with self.copies.changed:
                self.copies.known(name).unloaded = False
            wanted = set(served)
        else:
            wanted = {max(served), *(ready.keys() & set(served))} if ready and served else set()
        if everything and not wanted:
            raise NotFound(f"model {name!r} has none of the versions that its version_policy serves", param="model")
        fetches = []
        for version in sorted(wanted):
            fetch = self.source.fetch(name, version, files)
            if version in ready and ready[version].fetch.digest == fetch.digest:
                fetch.fetched.close()
            else:
                fetches.append(fetch)
        return fetches, [copy for version, copy in ready.items() if version not in served]

    # In the thread that loads.

    def _bring(self, coming: _Coming, fetch: Fetch) -> None:
        try:
            if self.copies.is_unloaded(fetch.name):
                raise unloaded(fetch.name)
            copy = self.copies.ready(fetch.name).get(fetch.version)
            if copy is not None:
                fetch.fetched.close()
            else:
                copy = self._load(fetch)
        except Exception as error:
            self._failed(coming, fetch.version, error)
            return
        self._settle(coming, copy)

    def _apply(self, done: Future[None], name: str, fetches: list[Fetch], leaving: list[Copy]) -> None:
        ready = list(self.copies.ready(name).values())
        try:
            for copy in ready:
                copy.kept = True
            for fetch in fetches:
                try:
                    self._load(fetch)
                except Exception as error:
                    self._remember((name, fetch.version), told(name, error))
                    raise
            self._let_go(leaving, "no longer served by the repository")
            done.set_result(None)
        except Exception as error:
            log.warning(
                "model.not_reloaded model=%s error=%s: what was served is served on", name, told(name, error).message
            )
            done.set_exception(error)
        finally:
            for copy in ready:
                copy.kept = False

    def _load(self, fetch: Fetch) -> Copy:
        with self.copies.changed:
            self.copies.known(fetch.name).loading.add(fetch.version)
        try:
            if self._stopped:
                raise NotReady("this process is stopping", retry_after=RETRY_AFTER)
            needed = self._needed(fetch)
            self._make_room(fetch, needed)
            model, phases = self.source.open(fetch)
            copy = Copy(fetch, serve(model, self._settings.queue_limit, self.statistics), needed, phases)
            before = self.copies.publish(copy)
        except Exception as error:
            fetch.fetched.close()
            self.copies.note(fetch.name, fetch.version, told(fetch.name, error).message)
            self._loaded(fetch.name, "failed")
            raise
        finally:
            with self.copies.changed:
                self.copies.known(fetch.name).loading.discard(fetch.version)
        self._loaded(fetch.name, "loaded")
        spent = " ".join(f"{phase}={seconds:.3f}" for phase, seconds in phases.items())
        log.info("model.loaded model=%s bytes=%d %s", fetch.key, needed, spent)
        if before is not None and before.users == 0:
            self._dispose(before, UNLOAD_TIMEOUT)
        return copy

    def _needed(self, fetch: Fetch) -> int:
        if self._settings.memory_budget:
            return self.measurements.of(fetch).total
        known = self.measurements.known(fetch.digest)
        return known.total if known is not None else 0

    def _make_room(self, fetch: Fetch, needed: int) -> None:
        budget = self._settings.memory_budget
        held = self.copies.held()
        decision = residency.admit(fetch.key, needed, budget, [model for model, _ in held.values()])
        if isinstance(decision, residency.Refused):
            raise OverBudget(f"no room for model {decision.reason}")
        if not decision.evict:
            return
        in_use = sum(model.bytes for model, _ in held.values())
        victims = [held[key][1] for key in decision.evict]
        chosen = [copy for copy in victims if not self.copies.is_leaving(copy)]
        note = f"evicted for {fetch.key}, which needs {needed} bytes: {in_use} of a budget of {budget} were in use"
        self.copies.retire(chosen, note)
        if not self.copies.wait_idle(victims, self._settings.load_wait, lambda: self._stopped):
            self.copies.restore(chosen)
            names = ", ".join(copy.fetch.key for copy in victims)
            raise Deadline(f"no room for model {fetch.key}: requests of {names} did not end in time")
        for copy in victims:
            self._dispose(copy, UNLOAD_TIMEOUT)
        for copy in chosen:
            log.info("model.evicted model=%s bytes=%d for=%s: the least recently used", *_line(copy), fetch.key)
            self._evicted(copy)

    def _let_go(self, copies: list[Copy], note: str) -> None:
        self.copies.retire(copies, note)
        for copy in copies:
            if copy.users == 0:
                self._dispose(copy, UNLOAD_TIMEOUT)

    def _dispose(self, copy: Copy, timeout: float) -> None:
        if self.copies.gone(copy):
            copy.served.stop(timeout)
            copy.fetch.fetched.close()
            memory.trim()
            log.info("model.unloaded model=%s bytes=%d", *_line(copy))

    def _dispose_later(self, copy: Copy) -> None:
        """Its last request is done, in whichever thread that was."""
        try:
            self._loader.submit(lambda: self._dispose(copy, UNLOAD_TIMEOUT))
        except RelightError:
            log.debug("model.left model=%s: this process is stopping, which lets go of it", copy.fetch.key)

    # Those who wait.

    def _step(self, coming: _Coming, workers: Workers, work: Callable[[], None]) -> None:
        try:
            workers.submit(work)
        except RelightError as error:
            self._failed(coming, coming.version, error)

    def _submit(self, workers: Workers, work: Callable[[], None], done: Future[Any]) -> None:
        try:
            workers.submit(work)
        except RelightError as error:
            done.set_exception(error)

    def _failed(self, coming: _Coming, version: int | None, error: Exception) -> None:
        reason = told(coming.name, error)
        if not isinstance(reason, NotFound | NotReady):
            log.warning("model.not_loaded model=%s version=%s", coming.name, version, exc_info=error)
        self._remember(coming.key, reason)
        if version is not None:
            self._remember((coming.name, version), reason)
        self._settle(coming, error=reason)

    def _remember(self, key: tuple[str, int | None], error: RelightError) -> None:
        if isinstance(error, _PASSING):
            return
        until = time.monotonic() + (UNKNOWN_FOR if isinstance(error, NotFound) else FAILED_FOR)
        with self._lock:
            for old in [old for old, failure in self._failures.items() if failure.is_over]:
                del self._failures[old]
            self._failures[key] = Failure(error, until)

    def _settle(self, coming: _Coming, copy: Copy | None = None, error: RelightError | None = None) -> None:
        with self._lock:
            if self._coming.get(coming.key) is coming:
                del self._coming[coming.key]
            waiters, coming.waiters = coming.waiters, []
        for future in waiters:
            if not future.set_running_or_notify_cancel():
                continue
            if copy is not None:
                with self.copies.changed:
                    self.copies.hold(copy)
                future.set_result(copy)
            else:
                assert error is not None
                future.set_exception(_again(error))

    def _late(self, coming: _Coming, future: Future[Copy], wait: float) -> None:
        with self._lock:
            if future not in coming.waiters:
                return
            coming.waiters.remove(future)
        if future.set_running_or_notify_cancel():
            error = Deadline(f"model {coming.name!r} was not loaded within {wait:g} s", retry_after=RETRY_AFTER)
            future.set_exception(error)


def unloaded(name: str) -> NotReady:
    """What a request for a model is told that somebody unloaded."""
    return NotReady(f"model {name!r} was unloaded; POST /v2/repository/models/{name}/load loads it again")


def told(name: str, error: Exception) -> RelightError:
    """What may be told to who waits: the mistakes of a configuration are not those of a request."""
    if isinstance(error, _TOLD_AS_THEY_ARE):
        return error
    reason = error.message if isinstance(error, RelightError) else f"{type(error).__name__}; the log says where"
    return LoadFailed(f"model {name!r} cannot be loaded: {reason}")


def _again(error: RelightError) -> RelightError:
    """The same error, once more: an exception that several threads raise would gather their tracebacks."""
    return type(error)(error.message, param=error.param, retry_after=error.retry_after)


def _line(copy: Copy) -> tuple[str, int]:
    return copy.fetch.key, copy.bytes
