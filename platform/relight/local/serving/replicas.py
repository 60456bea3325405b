"""The replicas of one revision: as many processes as the autoscaler wants, each started, watched, drained and reaped.

A start that fails is not repeated at once: held requests are answered with the reason, further ones likewise, and the
next try comes after a delay that doubles, so that a broken function is never a storm of restarts. A replica that dies
after it was ready is replaced at once the first time. Where the machine has no room for a replica none is made: the
revision waits in line.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from relight.base.errors import LoadFailed, RelightError
from relight.base.ids import suffix
from relight.base.tasks import Tasks
from relight.local.serving import probing
from relight.local.serving.activator import Gate
from relight.local.serving.launching import Launched, Launcher, announcement, read_tail
from relight.local.serving.machine import Machine
from relight.local.serving.replica import FIRST_DELAY, SETTLED, Failure, Observer, Reason, Replica, State, failed, why
from relight.local.serving.types import RevisionSpec

log = logging.getLogger("relight.local.serving")

DYING = 0.5
"""Seconds in which the end of a process that refuses connections is waited for."""


class Replicas:
    """Brings the number of replicas of a revision to what is wanted. All methods run on the event loop.

    ``short`` is called when the machine has no room for one that is wanted.
    """

    def __init__(
        self,
        spec: RevisionSpec,
        launcher: Launcher,
        gate: Gate,
        observer: Observer,
        tasks: Tasks,
        machine: Machine,
        *,
        changed: Callable[[], None],
        short: Callable[[], None],
    ) -> None:
        self.spec = spec
        self._machine = machine
        self._short = short
        self._launcher = launcher
        self._gate = gate
        self._observer = observer
        self._tasks = tasks
        self._changed = changed
        self._replicas: dict[str, Replica] = {}
        self._want = 0
        self._most: int | None = None
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
        return sum(replica.serves for replica in self._replicas.values())

    @property
    def starting(self) -> int:
        return self.count(State.STARTING)

    @property
    def here(self) -> int:
        """Those that are there, or will be: what a want is compared with."""
        return self.count(State.STARTING, State.READY)

    @property
    def slots(self) -> int | None:
        """So many the machine can hold, those that are there included; None: any number."""
        room = self._machine.room(self.spec.need)
        return None if room is None else self.here + room

    @property
    def missing(self) -> int:
        """So many are wanted and could not be made for want of room, or to give another revision room."""
        return 0 if self._closed or self._delayed() > 0 else max(0, self._want - self.here)

    def limit(self, most: int | None) -> None:
        """No more than this many, whatever is wanted: another revision needs the room. None: as many as are wanted."""
        if most != self._most:
            self._most = most
            self.scale(self._want)

    def pids(self) -> list[int]:
        """Processes of the replicas that serve."""
        return [one.launched.child.pid for one in self._replicas.values() if one.serves and one.launched]

    def scale(self, want: int) -> None:
        """Want this many. Starts are put off while a failure's delay runs; stops drain first."""
        self._want = want
        if self._closed:
            return
        missing = (want if self._most is None else min(want, self._most)) - self.here
        if missing > 0:
            wait = self._delayed()
            if wait > 0:
                self._retry_after(wait)
                return
            for _ in range(missing):
                grant = self._machine.take(self.spec.key, self.spec.need)
                if grant is None:
                    self._short()
                    return
                replica = Replica(f"{self.spec.key.name}-deployment-{suffix(10)}-{suffix()}", grant=grant)
                self._replicas[replica.pod] = replica
                self._tasks.spawn(self._live(replica), replica.pod)
        elif missing < 0:
            reason = Reason.SCALED_DOWN if self._most is None or want <= self._most else Reason.GAVE_WAY
            for replica in self._victims(-missing):
                self._tasks.spawn(self._retire(replica, reason), f"retire-{replica.pod}")

    def _delayed(self) -> float:
        """Seconds until a replica may be started again."""
        return (self.failure.retry_at if self.failure else 0.0) - time.monotonic()

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
        spec = self.spec
        try:
            assert replica.grant is not None
            granted = self._machine.environment(replica.grant)
            launched = replica.launched = await self._launcher.launch(spec, replica.pod, granted)
            if replica.state is not State.STARTING:  # retired while it was being launched
                await launched.child.stop(1.0)
                launched.close()
                return
            self._observer.replica_moved(spec, replica)
            check = probing.checker(spec.probes, launched.address, launched.environ, spec.source)
            async with asyncio.timeout(spec.progress_deadline):
                replica.ready = await announcement(launched)
                await probing.until_ready(spec.probes, check)
        except TimeoutError:
            text = f"not ready within {spec.progress_deadline:.0f} s"
            await self._ended(replica, Reason.TOO_SLOW, text)
            return
        except RelightError as error:
            reason, text = Reason.CRASHED, error.message
            if isinstance(error, LoadFailed):
                reason, text = self._why(replica, error.message)
            await self._ended(replica, reason, text)
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
            self._observer.replica_moved(spec, replica)
            self._changed()
        watching = self._watch(replica, check)
        status = await launched.child.wait()
        for task in watching:
            task.cancel()
        await self._ended(replica, *self._why(replica, f"the process ended by itself: {status}"))

    def _why(self, replica: Replica, said: str) -> tuple[Reason, str]:
        launched = replica.launched
        tail = read_tail(self._launcher.log_path(self.spec.key.namespace, replica.pod), 4096)
        counted = launched is not None and launched.group.out_of_memory()
        return why(said, tail, was_ready=replica.state is State.READY, counted=counted)

    def _watch(self, replica: Replica, check: probing.Check) -> list[asyncio.Task[None]]:
        """Probe it for as long as it lives: one that is not ready gets no requests, one that is not alive goes."""

        def readiness(well: bool, wrong: str) -> None:
            if replica.state is not State.READY:
                return
            replica.passing = well
            if well and replica.launched is not None:
                self._gate.add(replica.pod, replica.launched.address)
            else:
                log.warning("replica.unready pod=%s error=%s: it gets no requests until it is", replica.pod, wrong)
                self._gate.suspect(replica.pod)
            self._observer.replica_moved(self.spec, replica)
            self._changed()

        def liveness(well: bool, wrong: str) -> None:
            if not well and replica.state is State.READY:
                replica.message = f"liveness probe failed: {wrong}"
                self._tasks.spawn(self._retire(replica, Reason.UNHEALTHY), f"unhealthy-{replica.pod}")

        watches = probing.watches(self.spec.probes, check, readiness, liveness)
        return [self._tasks.spawn(one, f"{name}-{replica.pod}") for name, one in watches.items()]

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
            replica.launched.close()
        if not retired:
            self._forget(replica)
            self.scale(self._want)

    def _record(self, reason: Reason, message: str, *, was_ready: bool, lasted: float) -> None:
        now = time.monotonic()
        self.failure = failed(self.failure, reason, message, was_ready=was_ready, lasted=lasted, now=now)
        delay = self.failure.retry_at - now
        log.error(
            "replica.failed revision=%s reason=%s error=%s: started again in %.0f s if it is still wanted",
            self.spec.key,
            reason.value,
            message,
            delay,
        )
        if delay >= FIRST_DELAY and not self.ready:  # for a shorter one requests are held
            self._gate.fail(
                LoadFailed(f"{self.spec.service or self.spec.key.name} cannot start: {message}", retry_after=delay)
            )
        if delay:
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
        if reason is Reason.UNHEALTHY:
            lasted = time.monotonic() - replica.ready.at if replica.ready else 0.0
            self._record(reason, replica.message, was_ready=True, lasted=lasted)
        if replica.grant is not None:
            replica.grant.leaving = True
        if reason in (Reason.UNREACHABLE, Reason.EVICTED, Reason.UNHEALTHY):
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
            replica.launched.close()
        replica.move(State.GONE)
        self._forget(replica)

    def _forget(self, replica: Replica) -> None:
        self._replicas.pop(replica.pod, None)
        self._forgotten.set()
        self._observer.replica_moved(self.spec, replica)
        if replica.grant is not None:
            self._machine.give_back(replica.grant)
        self._changed()

    def refused(self, pod: str) -> None:
        """A replica takes no connections though its process runs: it is replaced."""
        replica = self._replicas.get(pod)
        if replica is not None and replica.serves:
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
            self._tasks.spawn(self._retire(replica, Reason.EVICTED, grace), f"evict-{pod}")

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
        await self.emptied()  # those that were draining already

    async def emptied(self) -> None:
        """Until there is no replica."""
        while self._replicas:
            self._forgotten.clear()
            await self._forgotten.wait()
