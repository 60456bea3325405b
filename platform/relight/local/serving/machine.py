"""This machine as a scheduler sees it: what it has, who holds how much of it, who waits for room.

Room is taken when a replica is made and given back when its process is gone, so that two replicas never have the same
GPU. Who finds none waits in line, and is told in that order when there is room again. What the machine has is declared
(``relight up --resources``) or found: cores and memory that this process may use, GPUs that the NVIDIA driver lists.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from relight.decide import slots
from relight.decide.slots import Amounts
from relight.local.serving.types import RevisionKey

log = logging.getLogger("relight.local.serving")

GPU = "nvidia.com/gpu"
VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The variable by which CUDA libraries are told which GPUs are theirs."""
_MIG = "nvidia.com/mig-"
"""Slices are counted; which one is whose only their driver knows."""
_DRIVER = Path("/proc/driver/nvidia/gpus")
_V1_MEMORY = Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")
_V2_MEMORY = Path("/sys/fs/cgroup/memory.max")


@dataclass(eq=False)
class Grant:
    """Room that one replica has."""

    owner: RevisionKey
    need: Amounts
    devices: tuple[str, ...] = ()
    """The GPUs that are its own, by the names that CUDA knows them by."""
    leaving: bool = False
    """Its replica drains: the room will be there soon."""


@dataclass(frozen=True)
class Capacity:
    """What a machine has."""

    amounts: Mapping[str, int]
    devices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of GPUs by resource, where they can be told apart."""


def detect(environ: Mapping[str, str], declared: Mapping[str, int] | None = None) -> Capacity:
    """What this process may use of the machine; what is ``declared`` counts instead of what is found."""
    gpus = _gpus(environ)
    amounts = {"cpu": len(os.sched_getaffinity(0)) * 1000, "memory": _memory(), **({GPU: len(gpus)} if gpus else {})}
    amounts |= declared or {}
    count = amounts.get(GPU, 0)
    names = gpus[:count] + [str(number) for number in range(len(gpus), count)]
    return Capacity(amounts, {GPU: tuple(names)} if names else {})


def _gpus(environ: Mapping[str, str]) -> list[str]:
    """The GPUs of this machine as CUDA names them; those only that this process may see itself."""
    if VISIBLE in environ:
        return [one for one in map(str.strip, environ[VISIBLE].split(",")) if one and one != "-1"]
    return [str(number) for number, _ in enumerate(sorted(_DRIVER.iterdir()))] if _DRIVER.is_dir() else []


def _memory() -> int:
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in (_V2_MEMORY, _V1_MEMORY):  # a container's own limit stands at the root of what it sees
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            found = min(found, int(text))
    return found


class Machine:
    """See the module. All on the event loop."""

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self._free = dict(capacity.amounts)
        self._devices = {name: list(devices) for name, devices in capacity.devices.items()}
        self._grants: list[Grant] = []
        self._waiting: dict[RevisionKey, Callable[[], None]] = {}
        self._telling = False

    @property
    def free(self) -> Amounts:
        return dict(self._free)

    @property
    def soon(self) -> Amounts:
        """What will be free when those that drain are gone."""
        found = dict(self._free)
        for grant in self._grants:
            if grant.leaving:
                for name, count in grant.need.items():
                    found[name] += count
        return found

    def room(self, need: Amounts) -> int | None:
        """How many more replicas fit now; None: any number."""
        return slots.room(self._free, need)

    def never(self, need: Amounts) -> tuple[str, ...]:
        """What there would be too little of if nothing ran."""
        return slots.lacking(self.capacity.amounts, need)

    def lacking(self, need: Amounts) -> tuple[str, ...]:
        """What there is too little of now."""
        return slots.lacking(self._free, need)

    def take(self, owner: RevisionKey, need: Amounts) -> Grant | None:
        """Room for one replica; None where there is none."""
        if self.lacking(need):
            return None
        devices: list[str] = []
        for name, count in need.items():
            self._free[name] -= count
            known = self._devices.get(name, [])
            devices += known[:count]
            del known[:count]
        grant = Grant(owner, need, tuple(devices))
        self._grants.append(grant)
        return grant

    def give_back(self, grant: Grant) -> None:
        """Its process is gone. Whoever waits is told. Idempotent."""
        if grant not in self._grants:
            return
        self._grants.remove(grant)
        for name, count in grant.need.items():
            self._free[name] += count
        self._devices.get(GPU, []).extend(grant.devices)
        self._tell()

    def wait(self, owner: RevisionKey, told: Callable[[], None]) -> None:
        """``owner`` finds no room: ``told`` is called whenever some was given back, until ``served``."""
        self._waiting.setdefault(owner, told)

    def served(self, owner: RevisionKey) -> None:
        """It waits no longer. Idempotent."""
        self._waiting.pop(owner, None)

    def holders(self, names: Sequence[str]) -> list[str]:
        """Who has any of these resources, for a sentence."""
        return sorted({str(one.owner) for one in self._grants if any(one.need.get(name) for name in names)})

    def _tell(self) -> None:
        if self._telling:
            return  # who is told may give something back itself
        self._telling = True
        try:
            for told in list(self._waiting.values()):
                told()
        finally:
            self._telling = False

    def environment(self, grant: Grant) -> dict[str, str]:
        """What a replica is told of its GPUs; one that asked for none sees none, as in a cluster's pod."""
        if not self.capacity.devices or any(name.startswith(_MIG) for name in grant.need):
            return {}
        return {VISIBLE: ",".join(grant.devices)}
