"""A request's way to a replica, whatever it speaks: its route, its revision's gate, its slot, and its count at the end.

A request that is held when its revision loses its traffic looks at the route again, and is held where the traffic goes
now: it was nobody's yet.
"""

from __future__ import annotations

from collections.abc import Mapping

from relight.base.errors import BadInput, RelightError
from relight.local.serving.activator import Gate, Moved, Slot, Waiter
from relight.local.serving.context import Context
from relight.local.serving.metrics import Series
from relight.local.serving.refusals import Refusal
from relight.local.serving.routes import Route
from relight.local.serving.timing import server_timing
from relight.local.serving.types import RevisionKey, RevisionLimits

LEAST_HELD = 1024
"""Bytes that a held request is counted with at least, for its head and our own objects."""


class Passage:
    """Common to ``Exchange`` and ``H2Exchange``, which say what is protocol in it: the methods that raise here."""

    __slots__ = (
        "_by_path",
        "_cold",
        "_context",
        "_deadline",
        "_ended",
        "_gate",
        "_held_until",
        "_key",
        "_limits",
        "_route",
        "_series",
        "_slot",
        "_tag",
        "_waiter",
        "arrived",
    )

    def __init__(self, context: Context, now: float) -> None:
        self.arrived = now
        self._context = context
        self._by_path = True
        self._route: Route | None = None
        self._tag: bytes | None = None
        """The tag that the request asks for by its header."""
        self._key: RevisionKey | None = None
        self._limits: RevisionLimits | None = None
        self._gate: Gate | None = None
        self._series: Series | None = None
        self._waiter: Waiter | None = None
        self._held_until = 0.0
        self._slot: Slot | None = None
        self._cold: Mapping[str, float] = {}
        """Phases of the cold start that this request waited for."""
        self._deadline = 0.0
        """When the answer must have begun, or, once it has, when it must be whole."""
        self._ended = False
        """The slot is given back and the answer counted."""

    # -- what the protocol says

    @property
    def buffered(self) -> int:
        """Bytes of the request that are kept here."""
        raise NotImplementedError

    def _set_deadline(self, at: float) -> None:
        raise NotImplementedError

    def _take(self, slot: Slot) -> None:
        """Send the request to the slot's replica."""
        raise NotImplementedError

    def _refuse(self, error: RelightError | Refusal) -> None:
        """Answer with an error; nothing has been answered yet."""
        raise NotImplementedError

    def _wanted(self) -> bool:
        """Whether somebody still waits for the answer."""
        raise NotImplementedError

    # -- where it goes

    def _pick(self, route: Route) -> RevisionLimits:
        """Choose the revision for a route. Raises Refusal where there is none."""
        self._route = route
        try:
            target = self._context.routes.pick(route, self._tag, self._context.random01())
        except BadInput as error:
            raise Refusal(404, "not_found", f"{route.namespace}/{route.name}: {error.message}") from None
        key = self._key = target.revision
        gate = self._gate = self._context.gates.get(key)
        if gate is None:
            raise Refusal(503, "not_ready", f"revision {key} is not set up on this machine yet")
        self._limits = limits = gate.limits
        self._series = self._context.metrics.series(key)
        self._deadline = self.arrived + min(limits.timeout, limits.response_start)
        return limits

    def _acquire(self) -> None:
        gate = self._gate
        assert gate is not None
        slot = gate.try_acquire()
        if slot is not None:
            self._take(slot)
            return
        try:
            waiter = gate.hold(max(self.buffered, LEAST_HELD), self._slot_came, self._gate_failed)
        except RelightError as error:
            self._refuse(error)
            return
        if self._ended or self._slot is not None or self._gate is not gate:
            # Being woken, the revision had its answer at once.
            return
        self._waiter = waiter
        longest = gate.hold_limits.max_seconds
        self._held_until = self._deadline if not longest else min(self._deadline, waiter.since + longest)
        self._set_deadline(self._held_until)

    def _slot_came(self, slot: Slot) -> bool:
        self._waiter = None
        if not self._wanted():
            return False
        self._set_deadline(self._deadline)
        self._take(slot)
        return True

    def _gate_failed(self, error: RelightError) -> None:
        self._waiter = None
        if not isinstance(error, Moved) or self._route is None:
            self._refuse(error)
            return
        found = self._context.routes.by_path(self._route.prefix)
        try:
            if found is None or found.route is None:
                raise Refusal(404, "not_found", f"{self._route.namespace}/{self._route.name} was deleted meanwhile")
            before = self._limits
            limits = self._pick(found.route)
            if before is not None and before.h2c != limits.h2c:
                raise Refusal(503, "not_ready", f"revision {self._key} speaks another protocol than the one before")
        except Refusal as refusal:
            self._refuse(refusal)
            return
        self._acquire()

    def _late(self) -> RelightError | None:
        """What a request that is held too long is told; None: it is not held."""
        if self._waiter is None or self._gate is None:
            return None
        return self._gate.late(self._waiter, self._held_until < self._deadline)

    def _refused_by(self, slot: Slot) -> None:
        """Nothing was sent: another replica takes the request, or it is held until there is one."""
        assert self._gate is not None
        assert self._key is not None
        self._gate.suspect(slot.replica_id)
        self._slot = None
        self._gate.release(slot)
        self._acquire()
        self._context.on_replica_error(self._key, slot.replica_id)

    def _first_answer(self, slot: Slot) -> None:
        """The answer begins: if it is the first since its revision was woken, the cold start is over."""
        gate, key = self._gate, self._key
        if gate is not None and key is not None and gate.woken_at is not None:
            woken, gate.woken_at = gate.woken_at, None
            self._cold = self._context.on_first_answer(key, slot.replica_id, self._context.clock() - woken)

    def _timing(self, slot: Slot) -> bytes:
        return server_timing(self._cold, slot.held, self._context.clock() - self.arrived)

    def _count(self, code_class: str) -> bool:
        """The replica is done with it, or never had it: give the slot back, and count. False: that is done already."""
        if self._ended:
            return False
        self._ended = True
        waiter, self._waiter = self._waiter, None
        slot, self._slot = self._slot, None
        if self._series is not None:
            self._series.observe(code_class, self._context.clock() - self.arrived)
        if self._gate is not None:
            if waiter is not None:
                self._gate.leave(waiter)
            if slot is not None:
                self._gate.release(slot)
        return True
