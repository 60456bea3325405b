"""The models that are in a process's memory, and what is known of those that are not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from relight.decide.residency import Held
from relight.runtime.loading import Fetch
from relight.runtime.served import Served


@dataclass(eq=False)
class Copy:
    """One version of a model in memory. ``users``: requests in flight, for which it stays."""

    fetch: Fetch
    served: Served
    bytes: int
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds of its load, by phase."""
    users: int = 0
    used: float = field(default_factory=time.monotonic)
    kept: bool = False
    """It must not give way now: its successor is being loaded."""

    @property
    def name(self) -> str:
        return self.fetch.name

    @property
    def version(self) -> int:
        return self.fetch.version


@dataclass
class Known:
    """What is known of a model beside its copies."""

    ready: dict[int, Copy] = field(default_factory=dict)
    served: tuple[int, ...] = ()
    """Versions that its policy serves, as the repository was last seen."""
    newest: int = 0
    """The version that a request means which names none, in memory or not; a ready one above it takes over."""
    notes: dict[int, str] = field(default_factory=dict)
    """Why a version is not in memory, for the index."""
    loading: set[int] = field(default_factory=set)
    unloaded: bool = False
    """Somebody unloaded it by name: no request brings it back."""
    evictions: int = 0
    seen: str | None = None
    """The repository's files of it when they were last looked at, as one digest; None: they never were."""


class Copies:
    """Copies by name and version, for all threads. Who has ``taken`` one must ``give_back`` it."""

    def __init__(self, idle: Callable[[Copy], None]) -> None:
        """``idle`` is told of a copy that was leaving when its last request is done."""
        self.changed = threading.Condition()
        self._idle = idle
        self._known: dict[str, Known] = {}
        self._leaving: set[Copy] = set()

    def known(self, name: str) -> Known:
        """What is known of a model; hold ``changed``. Only for names that the repository has."""
        return self._known.setdefault(name, Known())

    def names(self) -> list[str]:
        """Models that were asked for and exist."""
        with self.changed:
            return list(self._known)

    def take(self, name: str, version: int | None) -> Copy | None:
        """A ready copy, held for a request; the newest where no version is asked for. None: it must be loaded.

        An older version is not given for a newer one that is merely not in memory: that is waited for.
        """
        with self.changed:
            known = self._known.get(name)
            if known is None or not known.ready:
                return None
            if version is None:
                version = max(known.ready)
                if version < known.newest:
                    return None
            copy = known.ready.get(version)
            return None if copy is None else self.hold(copy)

    def hold(self, copy: Copy) -> Copy:
        """Hold a copy that is known to be there; hold ``changed`` too."""
        copy.users += 1
        copy.used = time.monotonic()
        return copy

    def give_back(self, copy: Copy) -> None:
        with self.changed:
            copy.users -= 1
            if copy.users:
                return
            self.changed.notify_all()
            leaves = copy in self._leaving
        if leaves:
            self._idle(copy)

    def is_unloaded(self, name: str) -> bool:
        with self.changed:
            known = self._known.get(name)
            return known is not None and known.unloaded

    def publish(self, copy: Copy) -> Copy | None:
        """From now on requests get this copy; the one that it replaces is returned, and is leaving."""
        with self.changed:
            known = self.known(copy.name)
            before = known.ready.get(copy.version)
            known.ready[copy.version] = copy
            known.notes.pop(copy.version, None)
            if before is not None:
                self._leaving.add(before)
            return before

    def retire(self, copies: Sequence[Copy], note: str) -> None:
        """No request gets these any more; those that have them keep them."""
        with self.changed:
            for copy in copies:
                known = self.known(copy.name)
                if known.ready.get(copy.version) is copy:
                    del known.ready[copy.version]
                    known.notes[copy.version] = note
                    self._leaving.add(copy)

    def restore(self, copies: Sequence[Copy]) -> None:
        """What was to leave stays after all."""
        with self.changed:
            for copy in copies:
                self._leaving.discard(copy)
                self.known(copy.name).ready.setdefault(copy.version, copy)

    def wait_idle(self, copies: Sequence[Copy], timeout: float, stopped: Callable[[], bool]) -> bool:
        """Wait until no request has these copies. False: time ran out, or it all stops."""
        deadline = time.monotonic() + timeout
        with self.changed:
            while any(copy.users for copy in copies):
                left = deadline - time.monotonic()
                if left <= 0 or stopped():
                    return False
                self.changed.wait(left)
        return True

    def gone(self, copy: Copy) -> bool:
        """Whether a leaving copy is still to be let go of: true once, for who then does it."""
        with self.changed:
            there = copy in self._leaving
            self._leaving.discard(copy)
            return there

    def forget(self, name: str) -> None:
        """The repository has no such model any more."""
        with self.changed:
            known = self._known.get(name)
            if known is not None and not known.ready:
                del self._known[name]

    def all(self) -> list[Copy]:
        """Every copy that takes memory, those that are leaving included."""
        with self.changed:
            return [*self._each(), *self._leaving]

    def ready(self, name: str) -> dict[int, Copy]:
        with self.changed:
            known = self._known.get(name)
            return dict(known.ready) if known is not None else {}

    def held(self) -> dict[str, tuple[Held, Copy]]:
        """What the decision about room is made from, by key. What leaves anyway takes room still, and goes first."""
        with self.changed:
            found = {}
            for copy in self._leaving:
                key = f"{copy.fetch.key} (leaving, {id(copy):x})"
                found[key] = Held(key, copy.bytes, 0.0), copy
            for copy in self._each():
                key = copy.fetch.key
                found[key] = Held(key, copy.bytes, copy.used, copy.users > 0, copy.kept), copy
            return found

    def is_leaving(self, copy: Copy) -> bool:
        with self.changed:
            return copy in self._leaving

    def serves(self, name: str, versions: Sequence[int]) -> None:
        """The repository was looked at: these versions are served."""
        with self.changed:
            self.known(name).served = tuple(versions)

    def means(self, name: str, version: int) -> None:
        """From now on a request that names no version means this one."""
        with self.changed:
            self.known(name).newest = version

    def note(self, name: str, version: int, reason: str) -> None:
        with self.changed:
            self.known(name).notes[version] = reason

    def _each(self) -> Iterator[Copy]:
        for known in self._known.values():
            yield from known.ready.values()
