"""How many processors this process may use, and which kind they are."""

from __future__ import annotations

import hashlib
import math
import os
import re
from functools import lru_cache
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_CGROUP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")
_FEATURES = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimddp",
    "sve",
)


def usable() -> int:
    """The processors of this process's affinity mask, and no more than its cgroups' quota; at least 1.

    The number of the host's processors is not it: a container of one processor that starts 64 threads spends its time
    on waiting for itself.
    """
    allowed = len(os.sched_getaffinity(0))
    quota = limit()
    return max(1, min(allowed, math.ceil(quota)) if quota else allowed)


def share(instances: int) -> int:
    """The threads of one run where so many go on at once: more would only wait for each other's processors."""
    return max(1, usable() // max(1, instances))


def limit() -> float | None:
    """The processors that this process's cgroups give it; None where they set no limit."""
    return _quota(_CGROUP, _CGROUPS)


def features() -> list[str]:
    """The instruction sets that decide how quick a model is, of those that this processor has."""
    try:
        text = _CPUINFO.read_text()
    except OSError:
        return []
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    have = set(found[1].split()) if found else set()
    return [name for name in _FEATURES if name in have]


def _quota(own: Path, root: Path) -> float | None:
    """The smallest quota from this process's cgroup up to the root, in processors; None where there is none."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    found: list[float] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder = root / path.strip("/")
            found += _up(folder, root, _v2_quota)
        elif "cpu" in controllers.split(","):
            found += _up(root / "cpu" / path.strip("/"), root / "cpu", _v1_quota)
    return min(found, default=None)


def _up(folder: Path, root: Path, read: object) -> list[float]:
    assert callable(read)
    quotas = []
    # In a container the path may be the host's, and the container's own group is mounted as the root.
    for candidate in (folder, *folder.parents):
        if candidate != root and root not in candidate.parents:
            break
        quota = read(candidate)
        if quota:
            quotas.append(float(quota))
    return quotas


def _v2_quota(folder: Path) -> float | None:
    try:
        limit, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) / int(period)


def _v1_quota(folder: Path) -> float | None:
    try:
        limit = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return None if limit <= 0 else limit / period


@lru_cache(maxsize=1)
def kind() -> str:
    """A short digest of the processor's model and instruction sets: what a saved graph was optimised for."""
    try:
        text = _CPUINFO.read_text()
    except OSError:
        text = ""
    first = text.partition("\n\n")[0]
    wanted = ("vendor_id", "cpu family", "model", "model name", "flags", "Features", "CPU part", "CPU implementer")
    lines = [line for line in first.splitlines() if line.split(":")[0].strip() in wanted]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
