"""The replicas of one revision: as many processes as the autoscaler wants, each started, watched, drained and reaped.

A replica's life is a table of legal moves::

    starting -> ready -> draining -> gone
        |         |                   ^
        |         +---- crashed ------+
        +---- failed, retired --------+

A start that fails is not repeated at once: held requests are answered with the reason, further ones likewise, and the
next try comes after a delay that doubles (10 s to 300 s, as the kubelet's), so that a broken function is never a storm
of restarts. A replica that dies after it was ready is replaced at once the first time.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from relight.base.errors import LoadFailed, RelightError
from relight.base.ids import suffix
from relight.base.tasks import Tasks
from relight.local.serving.activator import Gate
from relight.local.serving.launching import Launched, Launcher, Ready, announcement
from relight.local.serving.types import RevisionSpec

log = logging.getLogger("relight.local.serving")

FIRST_DELAY = 10.0
LAST_DELAY = 300.0
DYING = 0.5
"""Seconds in which the end of a process that refuses connections is waited for."""
SETTLED = 60.0
"""Seconds that a replica must have been ready for earlier failures to be forgotten."""


class State(enum.Enum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"


class Reason(enum.Enum):
    """Why a replica ended."""

    SCALED_DOWN = "ScaledDown"
    LOAD_FAILED = "LoadFailed"
    CRASHED = "Crashed"
    UNREACHABLE = "Unreachable"
    DELETED = "Deleted"
    TOO_SLOW = "ProgressDeadlineExceeded"
    SHUT_DOWN = "ShutDown"


_MOVES = {
    State.STARTING: {State.READY, State.DRAINING, State.GONE},
    State.READY: {State.DRAINING, State.GONE},
    State.DRAINING: {State.GONE},
    State.GONE: set[State](),
}


@dataclass
class Replica:
    """One process of a revision."""

    pod: str
    state: State = State.STARTING
    launched: Launched | None = None
    ready: Ready | None = None
    reason: Reason | None = None
    message: str = ""

    def move(self, state: State) -> None:
        if state not in _MOVES[self.state]:
            raise AssertionError(f"replica {self.pod}: {self.state.value} -> {state.value} is no legal move")
        self.state = state


@dataclass(frozen=True)
class Failure:
    """The latest failed start or crash."""

    reason: Reason
    message: str
    in_a_row: int
    retry_at: float
    """Monotonic time before which no replica is started."""


class Observer(Protocol):
    """Told of each replica's moves; shows them as Pod objects and records cold starts."""

    def replica_moved(self, spec: RevisionSpec, replica: Replica) -> None: ...


class Replicas:
    """Brings the number of replicas of a revision to what is wanted. All methods run on the event loop."""

    def __init__(
        self,
        spec: RevisionSpec,
        launcher: Launcher,
        gate: Gate,
        observer: Observer,
        tasks: Tasks,
        *,
        changed: Callable[[], None],
    ) -> None:
        self.spec = spec
        self._launcher = launcher
        self._gate = gate
        self._observer = observer
        self._tasks = tasks
        self._changed = changed
        self._replicas: dict[str, Replica] = {}
        self._want = 0
        self._retry: asyncio.TimerHandle | None = None
        self._closed = False
        self._forgotten = asyncio.Event()
        self.failure: Failure | None = None

    @property
    def want(self) -> int:
        return self._want

    def count(self, *states: State) -> int:
        return sum(replica.state in states for replica in self._replicas.values())

    @property
    def ready(self) -> int:
        return self.count(State.READY)

    @property
    def starting(self) -> int:
        return self.count(State.STARTING)

    def scale(self, want: int) -> None:
        """Want this many. Starts are put off while a failure's delay runs; stops drain first."""
        self._want = want
        if self._closed:
            return
        missing = want - self.count(State.STARTING, State.READY)
        if missing > 0:
            wait = (self.failure.retry_at if self.failure else 0.0) - time.monotonic()
            if wait > 0:
                self._retry_after(wait)
                return
            for _ in range(missing):
                replica = Replica(f"{self.spec.key.name}-deployment-{suffix(10)}-{suffix()}")
                self._replicas[replica.pod] = replica
                self._tasks.spawn(self._live(replica), replica.pod)
        elif missing < 0:
            for replica in self._victims(-missing):
                self._tasks.spawn(self._retire(replica, Reason.SCALED_DOWN), f"retire-{replica.pod}")

    def _victims(self, count: int) -> list[Replica]:
        """Those that are not ready go first, then those with the least in flight."""
        candidates = [one for one in self._replicas.values() if one.state in (State.STARTING, State.READY)]
        candidates.sort(key=lambda one: (one.state is State.READY, self._gate.load(one.pod)))
        return candidates[:count]

    def _retry_after(self, seconds: float) -> None:
        if self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(seconds, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._gate.recover()
        if not self._closed:
            self.scale(self._want)
            self._changed()

    async def _live(self, replica: Replica) -> None:
        """A replica's whole life, from launch to the end of its process."""
        try:
            launched = replica.launched = await self._launcher.launch(self.spec, replica.pod)
            if replica.state is not State.STARTING:  # retired while it was being launched
                await launched.child.stop(1.0)
                launched.control.close()
                return
            self._observer.replica_moved(self.spec, replica)
            async with asyncio.timeout(self.spec.progress_deadline):
                replica.ready = await announcement(launched)
        except TimeoutError:
            text = f"not ready within {self.spec.progress_deadline:.0f} s"
            await self._ended(replica, Reason.TOO_SLOW, text)
            return
        except RelightError as error:
            reason = Reason.LOAD_FAILED if isinstance(error, LoadFailed) else Reason.CRASHED
            await self._ended(replica, reason, error.message)
            return
        except Exception as error:
            # A fault of the platform's own: it costs this replica, not the others.
            log.exception("replica.unexpected pod=%s: it counts as crashed", replica.pod)
            await self._ended(replica, Reason.CRASHED, f"the platform could not start it: {error!r}")
            return
        if replica.state is State.STARTING:
            replica.move(State.READY)
            self._gate.recover()
            self._gate.add(replica.pod, launched.address)
            self._observer.replica_moved(self.spec, replica)
            self._changed()
        status = await launched.child.wait()
        await self._ended(replica, Reason.CRASHED, f"the process ended by itself: {status}")

    async def _ended(self, replica: Replica, reason: Reason, message: str) -> None:
        """The process is gone, or must go, without having been asked to retire."""
        retired = replica.state in (State.DRAINING, State.GONE)
        if not retired:
            was_ready = replica.state is State.READY
            lasted = time.monotonic() - replica.ready.at if replica.ready else 0.0
            replica.reason, replica.message = reason, message
            self._gate.remove(replica.pod)
            replica.move(State.GONE)
            self._record(reason, message, was_ready=was_ready, lasted=lasted)
        if replica.launched is not None:
            await replica.launched.child.stop(0.0)
            replica.launched.control.close()
        if not retired:
            self._forget(replica)
            self.scale(self._want)

    def _record(self, reason: Reason, message: str, *, was_ready: bool, lasted: float) -> None:
        before = self.failure.in_a_row if self.failure and lasted < SETTLED else 0
        delay = min(LAST_DELAY, FIRST_DELAY * 2 ** max(0, before - (1 if was_ready else 0)))
        if was_ready and before == 0:
            delay = 0.0
        self.failure = Failure(reason, message, before + 1, time.monotonic() + delay)
        log.error(
            "replica.failed revision=%s reason=%s error=%s: started again in %.0f s if it is still wanted",
            self.spec.key,
            reason.value,
            message,
            delay,
        )
        if delay and not self.ready:
            self._gate.fail(
                LoadFailed(f"{self.spec.service or self.spec.key.name} cannot start: {message}", retry_after=delay)
            )
            self._retry_after(delay)

    async def _retire(self, replica: Replica, reason: Reason, grace: float | None = None) -> None:
        """Drain from the door inward: no new requests, those in flight finish, then SIGTERM, then SIGKILL.

        ``grace``: seconds for all of it; None: what the revision's own says.
        """
        grace = self.spec.grace if grace is None else min(grace, self.spec.grace)
        if replica.state not in (State.STARTING, State.READY):
            return
        was_ready = replica.state is State.READY
        replica.move(State.DRAINING)
        replica.reason = reason
        idle = self._gate.remove(replica.pod)
        self._observer.replica_moved(self.spec, replica)
        if reason in (Reason.UNREACHABLE, Reason.DELETED):
            self.scale(self._want)
        self._changed()
        deadline = time.monotonic() + grace
        if was_ready and grace:
            try:
                async with asyncio.timeout(grace):
                    await idle
            except TimeoutError:
                log.warning("replica.drain pod=%s: requests still in flight after %.0f s are cut", replica.pod, grace)
        if replica.launched is not None:
            left = max(1.0, deadline - time.monotonic()) if was_ready else 1.0
            await replica.launched.child.stop(left if grace else 0.0)
            replica.launched.control.close()
        replica.move(State.GONE)
        self._forget(replica)

    def _forget(self, replica: Replica) -> None:
        self._replicas.pop(replica.pod, None)
        self._forgotten.set()
        self._observer.replica_moved(self.spec, replica)
        self._changed()

    def refused(self, pod: str) -> None:
        """A replica takes no connections though its process runs: it is replaced."""
        replica = self._replicas.get(pod)
        if replica is not None and replica.state is State.READY:
            self._tasks.spawn(self._replace(replica, replica.launched), f"replace-{pod}")

    def evict(self, pod: str, *, at_once: bool) -> None:
        """Its Pod was deleted: it drains (``at_once``: it is killed), and another is started if it is still wanted."""
        replica = self._replicas.get(pod)
        if replica is None:
            return
        if replica.state is State.DRAINING and at_once and replica.launched is not None:
            replica.launched.child.kill()
        else:
            grace = 0.0 if at_once else None
            self._tasks.spawn(self._retire(replica, Reason.DELETED, grace), f"evict-{pod}")

    async def _replace(self, replica: Replica, launched: Launched | None) -> None:
        if launched is not None:
            try:
                async with asyncio.timeout(DYING):
                    await launched.child.wait()
                return  # it was dying: that is a crash, which ``_live`` sees
            except TimeoutError:
                log.warning("replica.refused pod=%s: it takes no connections and is replaced", replica.pod)
        await self._retire(replica, Reason.UNREACHABLE)

    def settle(self) -> None:
        """Forget failures once a replica has been ready for long enough."""
        if self.failure and any(
            one.ready and time.monotonic() - one.ready.at > SETTLED for one in self._replicas.values()
        ):
            self.failure = None

    async def stop(self, reason: Reason) -> None:
        """Retire all and wait for them. Idempotent."""
        self._closed = True
        self._want = 0
        if self._retry is not None:
            self._retry.cancel()
        pending = [one for one in self._replicas.values() if one.state in (State.STARTING, State.READY)]
        await asyncio.gather(*(self._retire(one, reason) for one in pending))
        while self._replicas:  # those that were draining already
            self._forgotten.clear()
            await self._forgotten.wait()
