"""What a replica needs of a machine, and how many replicas a machine can hold.

Amounts are whole numbers by resource name: thousandths of a core for ``cpu``, bytes for ``memory``, pieces for
anything else (``nvidia.com/gpu``, ``nvidia.com/mig-1g.10gb``). As on a cluster, what counts is what a pod *requests*; a
container that names only a limit requests that much; one that names neither takes no room. A resource that a machine
does not have is one that it has zero of.

When a new revision finds the machine full, its predecessor gives way, as ``relight.dev/rollout-strategy`` on the
template says: with ``surge`` (the default) only by as many replicas as the new one needs, and only where there is no
room beside them; with ``recreate`` by all of them, before the first one of the new revision is started.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relight.base.units import parse_amount

Amounts = Mapping[str, int]

ROLLOUT = "relight.dev/rollout-strategy"
"""Template annotation: ``surge`` or ``recreate``."""
STRATEGIES = ("surge", "recreate")
_IGNORED = ("ephemeral-storage",)
"""Asked for, but not counted: this machine's disk is the user's to watch."""


@dataclass(frozen=True)
class Limits:
    """What one replica may use at most; None: no limit. ``cpu`` in cores, ``memory`` in bytes."""

    cpu: float | None = None
    memory: int | None = None

    def __bool__(self) -> bool:
        return self.cpu is not None or self.memory is not None


def requested(spec: Mapping[str, Any]) -> dict[str, int]:
    """What one replica of a revision needs, over all its containers."""
    needs: dict[str, int] = {}
    for container in spec.get("containers") or ():
        resources = container.get("resources") or {}
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for name, quantity in asked.items():
            if name not in _IGNORED:
                needs[name] = needs.get(name, 0) + parse_amount(name, quantity)
    return {name: count for name, count in needs.items() if count}


def limited(spec: Mapping[str, Any]) -> Limits:
    """What one replica of a revision may use, over all its containers; a container without a limit has none."""
    cpu, memory = _sum(spec, "cpu"), _sum(spec, "memory")
    return Limits(None if cpu is None else cpu / 1000, memory)


def _sum(spec: Mapping[str, Any], name: str) -> int | None:
    total = None
    for container in spec.get("containers") or ():
        given = ((container.get("resources") or {}).get("limits") or {}).get(name)
        if given is None:
            return None
        total = (total or 0) + parse_amount(name, given)
    return total


def room(free: Amounts, need: Amounts) -> int | None:
    """How many more replicas fit; None: any number, for they need nothing that is counted."""
    return min((max(0, free.get(name, 0)) // count for name, count in need.items()), default=None)


def lacking(free: Amounts, need: Amounts) -> tuple[str, ...]:
    """The resources of which there is too little for one replica, in order of their names."""
    return tuple(sorted(name for name, count in need.items() if free.get(name, 0) < count))


def unschedulable(lacks: Sequence[str], *, ever: bool) -> str:
    """The scheduler's own sentence about one node that a pod does not fit on. ``ever``: not even if it were empty."""
    insufficient = ", ".join(f"1 Insufficient {name}" for name in lacks)
    why = "1 Preemption is not helpful for scheduling." if ever else "1 No preemption victims found for incoming pod."
    nodes = "0/1 nodes are available:"
    return f"{nodes} {insufficient}. no new claims to deallocate, preemption: {nodes} {why}"


@dataclass(frozen=True)
class Holder:
    """A revision that holds room which another one waits for."""

    name: str
    need: Amounts
    replicas: int
    routed: bool
    """Requests are sent to it: it is the predecessor. Where none are, it is on its way out, and goes first."""


def giving_way(
    strategy: str, free: Amounts, need: Amounts, wanted: int, holders: Iterable[Holder]
) -> dict[str, int] | None:
    """How many replicas each holder keeps, so that ``wanted`` replicas of a new revision fit beside them.

    Holders that no request is sent to come first, all their replicas go if need be. Of a predecessor as few go as are
    needed for *one* replica of the new revision: it goes on serving with the others until the new one takes over.
    None: whatever they gave, there would not be room for one; then nobody gives anything.
    """
    kept: dict[str, int] = {}
    left = dict(free)
    ordered = sorted(holders, key=lambda one: one.routed)
    for holder in ordered:
        if strategy == "recreate" and holder.routed:
            kept[holder.name] = 0
            _return(left, holder.need, holder.replicas)
    for holder in ordered:
        if holder.name in kept:
            continue
        keeps, enough = holder.replicas, 1 if holder.routed else wanted
        while keeps and (room(left, need) or 0) < enough and _helps(left, need, holder.need):
            keeps -= 1
            _return(left, holder.need, 1)
        if keeps < holder.replicas:
            kept[holder.name] = keeps
    fits = room(left, need)
    return kept if fits is None or fits > 0 else None


def _helps(free: Amounts, need: Amounts, given: Amounts) -> bool:
    """Whether a holder has any of what is lacking."""
    bottlenecks = [name for name, count in need.items() if free.get(name, 0) // count == (room(free, need) or 0)]
    return any(given.get(name) for name in bottlenecks)


def _return(free: dict[str, int], need: Amounts, replicas: int) -> None:
    for name, count in need.items():
        free[name] = free.get(name, 0) + count * replicas
