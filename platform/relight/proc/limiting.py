"""Limits on a child's memory and CPU: by a control group where this process may make one, else by what else Linux has.

=========== ============================================== =======================================================
kind        memory                                         CPU
=========== ============================================== =======================================================
cgroup v2   ``memory.max``: the kernel ends who exceeds it ``cpu.max``: so much time in each tenth of a second
cgroup v1   ``memory.limit_in_bytes``: the same            ``cpu.cfs_quota_us``: the same
rlimit      ``RLIMIT_DATA``: allocations fail above it     affinity: as many cores as the limit, rounded up
=========== ============================================== =======================================================

``RLIMIT_DATA`` and not ``RLIMIT_AS``: weights that are mapped from files must not count, for they are the page cache's.
It counts what *may* be written, so a thread's stack counts in full (8 MiB each by default).

The child joins its group itself, before it does anything else: what it allocates is charged there from the first byte.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

log = logging.getLogger("relight.proc")

Kind = Literal["cgroup v2", "cgroup v1", "rlimit"]
PERIOD = 100_000
"""Microseconds of the kernel's CPU accounting period."""
CGROUPS = Path("/sys/fs/cgroup")
_PREFIX = "relight-"


def apply(asked: Mapping[str, Any]) -> None:
    """In the child: take on what ``Group.payload`` asks for. What cannot be had is logged, and the child goes on."""
    for path in asked.get("cgroups", ()):
        try:
            Path(path).write_text("0")
        except OSError as error:
            log.warning("limits.cgroup path=%s error=%s: this process runs without that limit", path, error)
    if asked.get("data"):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = asked["data"] if hard == resource.RLIM_INFINITY else min(hard, asked["data"])
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    if asked.get("cores"):
        with contextlib.suppress(OSError):  # a core that was taken offline meanwhile
            os.sched_setaffinity(0, asked["cores"])


@dataclass(frozen=True)
class Group:
    """The limits of one child. ``close`` once it has ended."""

    payload: Mapping[str, Any] = field(default_factory=dict)
    """What the child hands to ``apply``."""
    memory: Path | None = None
    """The folder of its memory group, where it has one."""
    folders: tuple[Path, ...] = ()
    kind: Kind = "rlimit"

    def out_of_memory(self) -> bool:
        """Whether the kernel has ended a process in it because of its limit."""
        if self.memory is None:
            return False
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError):
                for line in (self.memory / name).read_text().splitlines():
                    word, _, count = line.partition(" ")
                    if word == "oom_kill" and int(count):
                        return True
        return False

    def close(self) -> None:
        for folder in self.folders:
            _remove(folder)


class Limiter:
    """Makes groups. Which kind is found out once, when it is made by ``find``."""

    def __init__(self, kind: Kind, parents: Mapping[str, Path], cores: tuple[int, ...]) -> None:
        self.kind = kind
        self._parents = parents
        self._cores = cores
        self._next = itertools.count()
        self._turn = 0

    @classmethod
    def find(cls, root: Path = CGROUPS, own: Path = Path("/proc/self/cgroup"), *, groups: bool = True) -> Limiter:
        """The best that this process may use. ``groups`` False: no control groups even where they could be made."""
        cores = tuple(sorted(os.sched_getaffinity(0)))
        found = _parents(root, own) if groups else None
        if found is None:
            return cls("rlimit", {}, cores)
        kind, parents = found
        for parent in set(parents.values()):
            _sweep(parent)
        return cls(kind, parents, cores)

    def group(self, cpu: float | None, memory: int | None) -> Group:
        """Limits for a child that is about to start: cores, bytes; None: no limit."""
        if cpu is None and memory is None:
            return Group()
        if self.kind == "rlimit":
            return self._bounded(cpu, memory)
        name = f"{next(self._next)}"
        folders: dict[Path, None] = {}
        try:
            if memory is not None:
                folder = self._made(self._parents["memory"] / name, folders)
                _set_memory(folder, memory, self.kind)
            if cpu is not None:
                folder = self._made(self._parents["cpu"] / name, folders)
                _set_cpu(folder, cpu, self.kind)
        except OSError as error:
            log.warning("limits.cgroup error=%s: this child gets RLIMIT_DATA and an affinity instead", error)
            for folder in folders:
                _remove(folder)
            return self._bounded(cpu, memory)
        joined = [str(folder / "cgroup.procs") for folder in folders]
        counted = self._parents["memory"] / name if memory is not None else None
        return Group({"cgroups": joined}, counted, tuple(folders), self.kind)

    def close(self) -> None:
        """Remove the groups' parents; those that still hold a process stay for the next platform to sweep."""
        for parent in set(self._parents.values()):
            _remove(parent)

    @staticmethod
    def _made(folder: Path, folders: dict[Path, None]) -> Path:
        folder.mkdir(exist_ok=True)
        folders[folder] = None
        return folder

    def _bounded(self, cpu: float | None, memory: int | None) -> Group:
        return Group({"data": memory, "cores": self._some(cpu)})

    def _some(self, cpu: float | None) -> list[int]:
        """As many cores as the limit, each time the next ones."""
        if cpu is None:
            return []
        count = min(len(self._cores), max(1, math.ceil(cpu)))
        first, self._turn = self._turn, (self._turn + count) % len(self._cores)
        return [self._cores[(first + step) % len(self._cores)] for step in range(count)]


def _set_memory(folder: Path, limit: int, kind: Kind) -> None:
    if kind == "cgroup v2":
        (folder / "memory.max").write_text(str(limit))
        (folder / "memory.oom.group").write_text("1")  # what a replica started ends with it
        with contextlib.suppress(OSError):  # without swap accounting there is no such file
            (folder / "memory.swap.max").write_text("0")
    else:
        (folder / "memory.limit_in_bytes").write_text(str(limit))


def _set_cpu(folder: Path, cpu: float, kind: Kind) -> None:
    quota = max(1000, math.ceil(cpu * PERIOD))  # the kernel takes no less than a millisecond
    if kind == "cgroup v2":
        (folder / "cpu.max").write_text(f"{quota} {PERIOD}")
    else:
        (folder / "cpu.cfs_period_us").write_text(str(PERIOD))
        (folder / "cpu.cfs_quota_us").write_text(str(quota))


def _parents(root: Path, own: Path) -> tuple[Kind, Mapping[str, Path]] | None:
    """A folder of our own per controller, made below this process's group; None where that may not be."""
    name = f"{_PREFIX}{os.getpid()}"
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return None
    for _, controllers, path in lines:
        if not controllers:
            parent = _second(root / path.lstrip("/"), name)
            if parent is not None:
                return "cgroup v2", {"memory": parent, "cpu": parent}
    found: dict[str, Path] = {}
    for _, controllers, path in lines:
        for controller in {"memory", "cpu"} & set(controllers.split(",")):
            folder = root / controllers / path.lstrip("/") / name
            try:
                folder.mkdir(exist_ok=True)
            except OSError:
                continue
            found[controller] = folder
    if found.keys() == {"memory", "cpu"}:
        return "cgroup v1", found
    for folder in found.values():
        _remove(folder)
    return None


def _second(group: Path, name: str) -> Path | None:
    """With v2, controllers are handed down, and only a group without processes of its own may do so."""
    parent = group / name
    try:
        if not {"memory", "cpu"} <= set((group / "cgroup.controllers").read_text().split()):
            return None
        parent.mkdir(exist_ok=True)
    except OSError:
        return None
    try:
        _hand_down(group)
        _hand_down(parent)
    except OSError:
        _remove(parent)
        return None
    return parent


def _hand_down(group: Path) -> None:
    control = group / "cgroup.subtree_control"
    if not {"memory", "cpu"} <= set(control.read_text().split()):
        control.write_text("+memory +cpu")


def _sweep(parent: Path) -> None:
    """Remove the groups of platforms that were killed: whose process is gone, and that hold no process any more."""
    for folder in parent.parent.glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX)
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            for child in folder.iterdir():
                if child.is_dir():
                    _remove(child)
            _remove(folder)


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):  # it is gone, or a process in it has not ended yet
        folder.rmdir()
