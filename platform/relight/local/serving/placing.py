"""Room for replicas, among revisions: who waits for it since when, who gives way to whom, and when that ends.

The rules are in ``decide.slots``. A predecessor that gave way gets its room back when the new revision cannot start
after all; when the new one serves, no request is sent to the predecessor any more, and what it holds goes over too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from relight.base.errors import NotReady
from relight.base.tasks import Tasks
from relight.decide import slots
from relight.decide.slots import Holder
from relight.local.serving.activator import Gate
from relight.local.serving.autoscaling import Scaler
from relight.local.serving.machine import Machine
from relight.local.serving.replicas import Replicas
from relight.local.serving.types import RevisionKey, RevisionSpec

log = logging.getLogger("relight.local.serving")


class Member(Protocol):
    """A revision as far as room is concerned."""

    @property
    def spec(self) -> RevisionSpec: ...

    @property
    def gate(self) -> Gate: ...

    @property
    def replicas(self) -> Replicas: ...

    @property
    def scaler(self) -> Scaler: ...


@dataclass(frozen=True)
class Shortage:
    """A revision that has not all the replicas it wants, for want of room."""

    lacks: tuple[str, ...]
    ever: bool
    """There would be too little of it if nothing else ran."""
    message: str


@dataclass
class Takeover:
    """A new revision that others give way to."""

    kept: dict[RevisionKey, int]
    """How many replicas each of them keeps."""
    routed: bool = False
    """Traffic has come to the new one."""


class Placing:
    """See the module. All on the event loop."""

    def __init__(
        self,
        machine: Machine,
        members: Mapping[RevisionKey, Member],
        tasks: Tasks,
        *,
        reachable: Callable[[RevisionKey], bool],
        following: Callable[[RevisionKey], bool],
        told: Callable[[RevisionKey, Shortage], None],
    ) -> None:
        self.machine = machine
        self._members = members
        self._tasks = tasks
        self._reachable = reachable
        self._following = following
        self._told = told
        self._short: dict[RevisionKey, Shortage] = {}
        self._called: set[RevisionKey] = set()
        self._takeovers: dict[RevisionKey, Takeover] = {}
        """By the revision that takes over."""

    def shortage(self, key: RevisionKey) -> Shortage | None:
        return self._short.get(key)

    def displaces(self, key: RevisionKey) -> bool:
        """Whether a predecessor has given all its room to this revision: then both cannot serve at once."""
        takeover = self._takeovers.get(key)
        return takeover is not None and 0 in takeover.kept.values()

    def routed(self, key: RevisionKey) -> None:
        """A route leads to it: from now on it is on its way out when none does."""
        self._called.add(key)

    # -- a new revision begins

    def begin(self, key: RevisionKey) -> None:
        """Start what a revision begins with; with ``recreate``, when its predecessors have stopped."""
        member = self._members[key]
        before: list[RevisionKey] = []
        if member.spec.strategy == "recreate" and not member.scaler.scale.initialized:
            before = self._predecessors(key)
        if before:
            log.info("rollout.recreate revision=%s: %s stop first", key, ", ".join(map(str, before)))
            self._give_way(key, dict.fromkeys(before, 0))
            member.replicas.limit(0)
            self._tasks.spawn(self._after(key, before), f"recreate-{key.name}")
        else:
            member.scaler.begin()

    async def _after(self, key: RevisionKey, before: list[RevisionKey]) -> None:
        there = [member for one in before if (member := self._members.get(one)) is not None]
        await asyncio.gather(*(member.replicas.emptied() for member in there))
        if key in self._members:
            self._members[key].replicas.limit(None)
            self._members[key].scaler.begin()

    # -- too little room

    def wanting(self, key: RevisionKey) -> None:
        """A revision has fewer replicas than it wants, for want of room."""
        member = self._members.get(key)
        if member is None:
            return
        need = member.spec.need
        never = self.machine.never(need)
        lacks = never or self.machine.lacking(need)
        if not lacks:
            return
        before = self._short.get(key)
        found = Shortage(lacks, bool(never), self._sentence(need, lacks, ever=bool(never)))
        self._short[key] = found
        self.machine.wait(key, lambda: self._room(key))
        if before is None or before.lacks != lacks or before.ever != found.ever:
            log.warning("revision.waits revision=%s for=%s: %s", key, ",".join(lacks), found.message)
            self._told(key, found)
        if never:
            member.gate.fail(
                NotReady(f"{member.spec.service or key.name} cannot start: {found.message}", retry_after=60)
            )
        else:
            self._ask(key, member)

    def _sentence(self, need: slots.Amounts, lacks: tuple[str, ...], *, ever: bool) -> str:
        has = self.machine.capacity.amounts if ever else self.machine.free
        numbers = ", ".join(
            f"{_shown(one, need[one])} {one} asked for, {_shown(one, has.get(one, 0))}" for one in lacks
        )
        if ever:
            return f"{slots.unschedulable(lacks, ever=True)} ({numbers} on this machine)"
        holders = ", ".join(self.machine.holders(lacks)) or "nobody"
        return f"{slots.unschedulable(lacks, ever=False)} ({numbers} free; held by {holders})"

    def served(self, key: RevisionKey) -> None:
        """It has what it wants. Idempotent."""
        if self._short.pop(key, None) is not None:
            log.info("revision.placed revision=%s", key)
        self.machine.served(key)

    def _room(self, key: RevisionKey) -> None:
        """Something was given back."""
        member = self._members.get(key)
        if member is None:
            self.machine.served(key)
            return
        member.replicas.scale(member.replicas.want)
        member.scaler.room_changed(time.monotonic())

    # -- giving way

    def _predecessors(self, key: RevisionKey) -> list[RevisionKey]:
        """Revisions of the same configuration that get its traffic until a newer one is ready."""
        own = self._members[key].spec
        return [
            other
            for other, member in self._members.items()
            if other != key
            and other.namespace == key.namespace
            and member.spec.configuration == own.configuration
            and self._following(other)
        ]

    def _ask(self, key: RevisionKey, member: Member) -> None:
        holders: dict[str, Holder] = {}
        # One that failed never takes anything from what works again: it waits.
        new = not member.scaler.scale.initialized and member.replicas.failure is None
        predecessors = set(self._predecessors(key)) if new else set()
        for other, one in self._members.items():
            gone = other in self._called and not self._reachable(other)
            if other != key and one.replicas.here and (gone or other in predecessors):
                holders[str(other)] = Holder(str(other), one.spec.need, one.replicas.here, not gone)
        wanted = max(1, member.replicas.missing)
        kept = slots.giving_way(member.spec.strategy, self.machine.soon, member.spec.need, wanted, holders.values())
        if kept:
            names = {str(other): other for other in self._members}
            self._give_way(key, {names[name]: count for name, count in kept.items()})

    def _give_way(self, key: RevisionKey, kept: Mapping[RevisionKey, int]) -> None:
        mine = self._takeovers.setdefault(key, Takeover({})).kept
        for other, count in kept.items():
            mine[other] = min(count, mine.get(other, count))
            log.info("revision.gives-way revision=%s to=%s keeps=%d", other, key, count)
            self._members[other].replicas.limit(mine[other])

    def settle(self) -> None:
        """Give room back where a takeover has ended, one way or the other; called whenever something has changed."""
        for key, takeover in list(self._takeovers.items()):
            takeover.routed = takeover.routed or self._reachable(key)
            if self._ended(key, takeover):
                del self._takeovers[key]
                for other in takeover.kept:
                    limits = [one.kept[other] for one in self._takeovers.values() if other in one.kept]
                    if other in self._members:
                        self._members[other].replicas.limit(min(limits, default=None))

    def _ended(self, key: RevisionKey, takeover: Takeover) -> bool:
        member = self._members.get(key)
        if member is None or member.replicas.failure is not None or (takeover.routed and not self._reachable(key)):
            return True
        there = [other for other in takeover.kept if other in self._members]
        return not any(self._reachable(other) or self._members[other].replicas.here for other in there)

    def forget(self, key: RevisionKey) -> None:
        """A revision is gone."""
        self._called.discard(key)
        self.served(key)
        self.settle()


def _shown(name: str, amount: int) -> str:
    if name == "cpu":
        return f"{amount / 1000:g}"
    return f"{amount / 2**20:.0f} MiB" if name == "memory" else str(amount)
