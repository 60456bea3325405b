"""Bringing models into a process's memory, one after another, and making room for them.

Finding and fetching go on in a few threads; whatever changes what is in memory happens in one thread, in order. So two
loads never compete for the same room, and what was admitted fits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from relight.base.errors import Deadline, NotFound, NotReady, OverBudget, RelightError
from relight.decide import residency
from relight.runtime import memory
from relight.runtime.answers.statistics import Statistics
from relight.runtime.copies import Copies, Copy
from relight.runtime.loading import Fetch, Source
from relight.runtime.measuring import Measurements
from relight.runtime.pending import settle
from relight.runtime.served import serve
from relight.runtime.waitingroom import Coming, WaitingRoom, told, unloaded
from relight.runtime.workers import RETRY_AFTER, Workers

log = logging.getLogger("relight.loads")

FETCHERS = 2
"""Models that are looked for and fetched at the same time: each fetch is itself in parallel."""
UNLOAD_TIMEOUT = 30.0
"""Seconds for a computation that still runs when its model goes; nobody waits for its result then."""


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
        self.room = WaitingRoom(settings.queue_limit, settings.load_wait, self._hold)
        self._fetchers = Workers("model-fetch", FETCHERS, settings.queue_limit)
        self._loader = Workers("model-load", 1, 4 * settings.queue_limit)
        self._promised: set[Future[Any]] = set()
        self._stopped = False

    def request(self, name: str, version: int | None, *, bounded: bool = True) -> Future[Copy]:
        """A copy of a model, held for the caller once the future is done. Raises what is known at once.

        ``bounded`` False: however long it takes, for a start that nobody waits for yet.
        """
        future, begins = self.room.join((name, version), bounded=bounded)
        if begins is not None:
            self._step(begins, self._fetchers, lambda: self._find(begins))
        return future

    def reload(self, name: str, *, everything: bool) -> Future[None]:
        """Load what has changed of a model: each new copy takes over when it is ready, then what is not served goes.

        ``everything``: every version that its policy serves; otherwise the newest and those that are loaded now, and
        nothing where none is.
        """
        done = self._promise()

        def plan() -> None:
            fetches: list[Fetch] = []
            try:
                leaving = self._plan(name, everything, fetches)
                self._loader.submit(lambda: self._apply(done, name, fetches, leaving))
            except Exception as error:
                for fetch in fetches:
                    fetch.fetched.close()
                settle(done, error=error)

        self._submit(self._fetchers, plan, done)
        return done

    def unload(self, name: str) -> Future[None]:
        """No request gets the model any more, until it is loaded by name; it goes when nothing of it is in flight."""
        done = self._promise()

        def work() -> None:
            try:
                copies = list(self.copies.ready(name).values())
                if not copies:
                    self.source.versions(name, fresh=False)  # NotFound for an unknown one
                with self.copies.changed:
                    self.copies.known(name).unloaded = True
                self._let_go(copies, "unloaded")
                settle(done)
            except Exception as error:
                settle(done, error=error)

        self._submit(self._loader, work, done)
        return done

    def run(self, work: Callable[[], Any]) -> Future[Any]:
        """Do something that asks the repository, in a thread that may."""
        done = self._promise()

        def attempt() -> None:
            try:
                settle(done, work())
            except Exception as error:
                settle(done, error=error)

        self._submit(self._fetchers, attempt, done)
        return done

    def stop(self, timeout: float) -> None:
        """Refuse who waits, and let go of all models. Idempotent."""
        self._stopped = True
        self.measurements.stop()
        self.room.close()
        for done in tuple(self._promised):
            settle(done, error=NotReady("this process is stopping", retry_after=RETRY_AFTER))
        with self.copies.changed:
            self.copies.changed.notify_all()
        self._fetchers.stop(timeout)
        self._loader.stop(timeout)
        copies = self.copies.all()
        self.copies.retire(copies, "this process is stopping")
        for copy in copies:
            self._dispose(copy, timeout)

    # In the threads that fetch.

    def _find(self, coming: Coming) -> None:
        version = coming.version
        try:
            _, served, files = self.source.versions(coming.name)
            self.copies.serves(coming.name, served)
            if version is None or not self.copies.ready(coming.name):
                newest = self.room.newest(coming.name, _some(coming.name, served))
                self.copies.means(coming.name, newest)
                version = newest if version is None else version
            if version not in served:
                have = ", ".join(map(str, served)) or "none"
                raise NotFound(
                    f"there is no version {version} of model {coming.name!r}; its versions served are {have}",
                    param="model",
                )
            fetch = self.source.fetch(coming.name, version, files)
        except Exception as error:
            self._failed(coming, version, error)
            return
        if not self._step(coming, self._loader, lambda: self._bring(coming, fetch)):
            fetch.fetched.close()

    def _plan(self, name: str, everything: bool, fetches: list[Fetch]) -> list[Copy]:
        """The copies that are to go; ``fetches`` gets what is to be loaded, the newest first."""
        ready = self.copies.ready(name)
        try:
            _, served, files = self.source.versions(name)
        except NotFound:
            if everything or not ready:
                raise
            return list(ready.values())
        self.copies.serves(name, served)
        if everything:
            self.room.forgive(name)
            with self.copies.changed:
                self.copies.known(name).unloaded = False
            wanted = set(_some(name, served))
        else:
            wanted = {max(served), *(ready.keys() & set(served))} if ready and served else set()
        for version in sorted(wanted, reverse=True):
            fetch = self.source.fetch(name, version, files)
            if version in ready and ready[version].fetch.digest == fetch.digest:
                fetch.fetched.close()
            else:
                fetches.append(fetch)
        return [copy for version, copy in ready.items() if version not in served]

    # In the thread that loads.

    def _bring(self, coming: Coming, fetch: Fetch) -> None:
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
        self.room.arrived(coming, copy)

    def _apply(self, done: Future[None], name: str, fetches: list[Fetch], leaving: list[Copy]) -> None:
        ready = list(self.copies.ready(name).values())
        for copy in ready:
            copy.kept = True
        failures = []
        for fetch in fetches:
            try:
                self._load(fetch)
            except Exception as error:
                reason = told(name, error)
                log.warning("model.not_reloaded model=%s reason=%s", fetch.key, reason.message)
                self.room.remember((name, fetch.version), reason)
                failures.append((fetch, error))
        for copy in ready:
            copy.kept = False
        if failures and failures[0][0] is fetches[0]:
            log.warning("model.kept model=%s: the newest version cannot take over, what was served is served on", name)
        else:
            self._let_go(leaving, "no longer served by the repository")
            if there := self.copies.ready(name):
                self.copies.means(name, max(there))
        settle(done, error=failures[0][1] if failures else None)

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

    # Handing on.

    def _promise(self) -> Future[Any]:
        """A future that ends at the latest when all of this does."""
        done: Future[Any] = Future()
        self._promised.add(done)
        done.add_done_callback(self._promised.discard)
        return done

    def _step(self, coming: Coming, workers: Workers, work: Callable[[], None]) -> bool:
        try:
            workers.submit(work)
        except RelightError as error:
            self._failed(coming, coming.version, error)
            return False
        return True

    def _submit(self, workers: Workers, work: Callable[[], None], done: Future[Any]) -> None:
        try:
            workers.submit(work)
        except RelightError as error:
            settle(done, error=error)

    def _failed(self, coming: Coming, version: int | None, error: Exception) -> None:
        reason = told(coming.name, error)
        if not isinstance(reason, NotFound | NotReady):
            log.warning("model.not_loaded model=%s version=%s", coming.name, version, exc_info=error)
        ready = self.copies.ready(coming.name)
        if coming.version is not None or not ready or self._stopped:
            self.room.failed(coming, version, reason)
            return
        older = max(ready)
        log.warning("model.kept model=%s: version %d answers who names none, until load is called", coming.name, older)
        if version is not None:
            self.room.remember((coming.name, version), reason)
        self.copies.means(coming.name, older)
        self.room.arrived(coming, ready[older])

    def _hold(self, copy: Copy) -> None:
        with self.copies.changed:
            self.copies.hold(copy)


def _some(name: str, served: list[int]) -> list[int]:
    if not served:
        raise NotFound(f"model {name!r} has none of the versions that its version_policy serves", param="model")
    return served


def _line(copy: Copy) -> tuple[str, int]:
    return copy.fetch.key, copy.bytes
