"""The activator: holds requests while a revision has no free replica, and wakes it once.

A gate belongs to one revision and lives on the event loop; nothing in it waits or locks. Every request passes it, cold
or warm, so that it also knows what the autoscaler asks: how many requests were there, on average, since last asked.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from relight.base.errors import Deadline, NotReady, RelightError
from relight.decide.admission import HoldLimits, choose, refuse
from relight.local.serving.meter import Meter
from relight.local.serving.types import Address, RevisionKey, RevisionLimits

log = logging.getLogger("relight.activator")


class Moved(NotReady):
    """A held request's revision gets no traffic any more: whoever asked looks at the route again."""


class Bucket(NamedTuple):
    """What happened at a gate since the previous sample."""

    average_concurrency: float
    """Requests held and in flight, weighted by time."""
    requests: int
    """Requests that arrived."""
    average_held: float
    """The part of the concurrency that waited for a replica."""


class Replica:
    """One replica as the gate sees it."""

    __slots__ = ("address", "drained", "id", "in_flight")

    def __init__(self, replica_id: str, address: Address) -> None:
        self.id = replica_id
        self.address = address
        self.in_flight = 0
        self.drained: asyncio.Future[None] | None = None
        """Set while the replica is being removed; done when nothing is in flight there."""


class Slot:
    """A request's place at a replica, until it is released."""

    __slots__ = ("held", "released", "replica")

    def __init__(self, replica: Replica, held: float) -> None:
        self.replica = replica
        self.held = held
        """Seconds that the request waited for this place."""
        self.released = False

    @property
    def address(self) -> Address:
        return self.replica.address

    @property
    def replica_id(self) -> str:
        return self.replica.id


class Waiter:
    """A held request. ``on_slot`` answers False when nobody wants the slot any more."""

    __slots__ = ("nbytes", "on_error", "on_slot", "since")

    def __init__(
        self, nbytes: int, since: float, on_slot: Callable[[Slot], bool], on_error: Callable[[RelightError], None]
    ) -> None:
        self.nbytes = nbytes
        self.since = since
        self.on_slot = on_slot
        self.on_error = on_error


class Gate:
    """Admission to one revision.

    ``wake`` is called once when a request comes while there is no replica; again only after a replica was there, after
    ``recover``, or after everybody who waited has left (whoever heard the first call may have given up by then). It
    must return at once.
    """

    def __init__(
        self,
        key: RevisionKey,
        limits: RevisionLimits,
        *,
        wake: Callable[[RevisionKey], None],
        hold: HoldLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.key = key
        self.limits = limits
        self.hold_limits = hold or HoldLimits()
        self.requests = 0
        """Requests that arrived since the gate exists."""
        self.woken_at: float | None = None
        """When ``wake`` was called, until the first answer since."""
        self._clock = clock
        self._draw = draw
        self._wake = wake
        self._woken = False
        self._failure: RelightError | None = None
        self._replicas: list[Replica] = []
        self._suspects: dict[str, Replica] = {}
        self._draining: dict[str, Replica] = {}
        self._waiters: OrderedDict[Waiter, None] = OrderedDict()
        self._held_bytes = 0
        self._turn = 0
        self._serving = False
        self._sampled_requests = 0
        now = clock()
        self._concurrency = Meter(now)
        self._held = Meter(now)

    # -- what it knows

    @property
    def held(self) -> int:
        """Requests that wait now."""
        return len(self._waiters)

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    @property
    def in_flight(self) -> int:
        """Requests at replicas now, those of replicas that are being removed included."""
        return self._concurrency.level - len(self._waiters)

    @property
    def replicas(self) -> tuple[str, ...]:
        """Ids of the replicas that take requests."""
        return tuple(replica.id for replica in self._replicas)

    def load(self, replica_id: str) -> int:
        """Requests in flight at one replica; 0 where it is not known."""
        replica = self._find(replica_id) or self._draining.get(replica_id) or self._suspects.get(replica_id)
        return replica.in_flight if replica is not None else 0

    def sample(self, now: float) -> Bucket:
        """Averages and count since the previous sample (or the gate's beginning); meant to be taken once a second."""
        requests = self.requests - self._sampled_requests
        self._sampled_requests = self.requests
        return Bucket(self._concurrency.sample(now), requests, self._held.sample(now))

    # -- replicas

    def add(self, replica_id: str, address: Address) -> None:
        """A replica takes requests from now on. Adding one that is known gives it a new address and clears doubts."""
        self._suspects.pop(replica_id, None)
        known = self._find(replica_id)
        if known is not None:
            known.address = address
        else:
            self._replicas.append(Replica(replica_id, address))
        self._woken = False
        self._failure = None
        self._serve()

    def remove(self, replica_id: str) -> asyncio.Future[None]:
        """No request goes to the replica from now on; the future is done when nothing is in flight there.

        Idempotent; an unknown replica has nothing in flight. Cancelling the future changes nothing.
        """
        if replica_id in self._draining:
            replica = self._draining[replica_id]
        else:
            found = self._suspects.pop(replica_id, None) or self._find(replica_id)
            replica = found or Replica(replica_id, Address("", 0))
            if replica in self._replicas:
                self._replicas.remove(replica)
                self._turn = 0
        if replica.drained is None or replica.drained.cancelled():
            replica.drained = asyncio.get_running_loop().create_future()
        if replica.in_flight == 0:
            self._draining.pop(replica_id, None)
            if not replica.drained.done():
                replica.drained.set_result(None)
        else:
            self._draining[replica_id] = replica
        self._wake_if_waited_for()
        return replica.drained

    def suspect(self, replica_id: str) -> None:
        """A replica refused a connection: it gets no request until its owner adds it again, or removes it."""
        replica = self._find(replica_id)
        if replica is not None:
            self._replicas.remove(replica)
            self._suspects[replica_id] = replica
            self._turn = 0
            self._wake_if_waited_for()

    def set_limits(self, limits: RevisionLimits) -> None:
        """New limits count for requests that are not yet in flight."""
        self.limits = limits
        self._serve()

    def fail(self, reason: RelightError) -> None:
        """The revision cannot start: whoever waits is answered with the reason, and so is whoever comes.

        It ends with ``recover``, or when a replica is added. While there are replicas they go on taking requests.
        """
        self._failure = reason
        if not self._replicas:
            self._refuse_all(reason)

    def recover(self) -> None:
        """After ``fail``: requests are held again, and the next one wakes the revision."""
        if self._failure is None:
            return
        self._failure = None
        self._woken = False
        self._wake_if_waited_for()

    def move(self) -> None:
        """The revision gets no traffic any more: whoever waits is told to ask where the traffic goes now."""
        self._refuse_all(Moved(f"revision {self.key} takes no more requests", retry_after=1))

    def close(self) -> None:
        """The revision is gone: whoever waits is told so."""
        self._failure = NotReady(f"revision {self.key} was deleted while this request waited for a replica")
        self._refuse_all(self._failure)

    # -- requests

    def try_acquire(self) -> Slot | None:
        """A slot if there is one free now: the way of a request to a warm function. Otherwise ``hold``."""
        replica = self._choose()
        if replica is None:
            return None
        self.requests += 1
        self._concurrency.change(1, self._clock())
        replica.in_flight += 1
        return Slot(replica, 0.0)

    def hold(self, nbytes: int, on_slot: Callable[[Slot], bool], on_error: Callable[[RelightError], None]) -> Waiter:
        """Wait for a slot; one of the callbacks is called once, on the loop, unless ``leave`` comes first.

        Raises Overloaded where the queue is full, and the reason of ``fail`` while there is one.
        """
        if self._failure is not None and not self._replicas:
            self.requests += 1
            raise self._failure.with_traceback(None)
        refusal = refuse(len(self._waiters), self._held_bytes, nbytes, self.hold_limits)
        if refusal is not None:
            self.requests += 1
            raise refusal
        now = self._clock()
        waiter = Waiter(nbytes, now, on_slot, on_error)
        self.requests += 1
        self._waiters[waiter] = None
        self._held_bytes += nbytes
        self._concurrency.change(1, now)
        self._held.change(1, now)
        self._wake_if_waited_for()
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """The held request gives up: it leaves no trace. Idempotent."""
        if waiter not in self._waiters:
            return
        self._take(waiter)
        self._concurrency.change(-1, self._clock())
        if not self._waiters and not self._replicas:
            self._woken = False

    async def acquire(self, deadline: float | None = None, nbytes: int = 0) -> Slot:
        """A slot, waited for until ``deadline`` (of the gate's clock; None: as long as it takes).

        Raises Overloaded or the reason of ``fail`` at once, NotReady after the longest hold, Deadline at the deadline.
        """
        slot = self.try_acquire()
        if slot is not None:
            return slot
        future: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()

        def on_slot(slot: Slot) -> bool:
            if future.done():
                return False
            future.set_result(slot)
            return True

        def on_error(error: RelightError) -> None:
            if not future.done():
                future.set_exception(error)

        waiter = self.hold(nbytes, on_slot, on_error)
        longest = self.hold_limits.max_seconds
        until = deadline
        if longest and (deadline is None or waiter.since + longest < deadline):
            until = waiter.since + longest
        taken = False
        try:
            async with asyncio.timeout(None if until is None else max(0.0, until - self._clock())):
                slot = await future
                taken = True
                return slot
        except TimeoutError:
            raise self.late(waiter, until != deadline) from None
        finally:
            self.leave(waiter)
            # Cancelled in the very turn of the loop in which the slot came: give it back.
            if not taken and future.done() and not future.cancelled() and future.exception() is None:
                self.release(future.result())

    def late(self, waiter: Waiter, held_too_long: bool) -> RelightError:
        """What a request that waited in vain is told: 503 after the longest hold, 504 at its own deadline."""
        waited = self._clock() - waiter.since
        sentence = f"no replica of revision {self.key} became free within {waited:.3g} s"
        if held_too_long:
            return NotReady(sentence, retry_after=self.hold_limits.retry_after)
        return Deadline(sentence)

    def release(self, slot: Slot) -> None:
        """The request has ended. Idempotent."""
        if slot.released:
            return
        self._give_back(slot)
        if self._waiters:
            self._serve()

    # -- inside

    def _find(self, replica_id: str) -> Replica | None:
        return next((replica for replica in self._replicas if replica.id == replica_id), None)

    def _choose(self) -> Replica | None:
        replicas = self._replicas
        concurrency = self.limits.container_concurrency
        if len(replicas) == 1:
            only = replicas[0]
            return only if concurrency == 0 or only.in_flight < concurrency else None
        if not replicas:
            return None
        index = choose([replica.in_flight for replica in replicas], concurrency, self._turn, self._draw())
        if index is None:
            return None
        self._turn = index + 1
        return replicas[index]

    def _take(self, waiter: Waiter) -> None:
        del self._waiters[waiter]
        self._held_bytes -= waiter.nbytes
        self._held.change(-1, self._clock())

    def _give_back(self, slot: Slot) -> None:
        slot.released = True
        replica = slot.replica
        replica.in_flight -= 1
        self._concurrency.change(-1, self._clock())
        if replica.drained is not None and replica.in_flight == 0:
            self._draining.pop(replica.id, None)
            if not replica.drained.done():
                replica.drained.set_result(None)

    def _serve(self) -> None:
        """Slots to waiters, first come first served. Not re-entered: a callback that releases only ends up here."""
        if self._serving:
            return
        self._serving = True
        try:
            while self._waiters:
                replica = self._choose()
                if replica is None:
                    return
                waiter = next(iter(self._waiters))
                self._take(waiter)
                replica.in_flight += 1
                slot = Slot(replica, self._clock() - waiter.since)
                if not waiter.on_slot(slot) and not slot.released:
                    self._give_back(slot)
        finally:
            self._serving = False

    def _refuse_all(self, reason: RelightError) -> None:
        while self._waiters:
            waiter = next(iter(self._waiters))
            self._take(waiter)
            self._concurrency.change(-1, self._clock())
            waiter.on_error(reason)

    def _wake_if_waited_for(self) -> None:
        if self._waiters and not self._replicas and not self._woken and self._failure is None:
            self._woken = True
            self.woken_at = self._clock()
            self._wake(self.key)


class Gates:
    """The gates of all revisions."""

    def __init__(
        self,
        wake: Callable[[RevisionKey], None],
        *,
        hold: HoldLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wake = wake
        self._hold = hold or HoldLimits()
        self._clock = clock
        self._gates: dict[RevisionKey, Gate] = {}

    def ensure(self, key: RevisionKey, limits: RevisionLimits | None = None, hold: HoldLimits | None = None) -> Gate:
        """The revision's gate, made where there is none; ``limits`` and ``hold`` replace those it has."""
        gate = self._gates.get(key)
        if gate is None:
            gate = Gate(key, limits or RevisionLimits(), wake=self._wake, hold=self._hold, clock=self._clock)
            self._gates[key] = gate
        elif limits is not None and limits != gate.limits:
            gate.set_limits(limits)
        gate.hold_limits = hold or gate.hold_limits
        return gate

    def get(self, key: RevisionKey) -> Gate | None:
        return self._gates.get(key)

    def drop(self, key: RevisionKey) -> None:
        """Forget a revision; whoever is held there is refused, what is in flight goes on to its end."""
        gate = self._gates.pop(key, None)
        if gate is not None:
            gate.close()

    def __iter__(self) -> Iterator[Gate]:
        return iter(list(self._gates.values()))

    def __len__(self) -> int:
        return len(self._gates)
