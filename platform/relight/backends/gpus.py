"""Which NVIDIA GPUs this process can see: by their device files, so that asking costs nothing and needs no library."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

DEVICES = Path("/dev")


def visible(environ: Mapping[str, str] | None = None, devices: Path = DEVICES) -> int:
    """How many GPUs CUDA would number from 0: those of the container, less what CUDA_VISIBLE_DEVICES hides."""
    environ = os.environ if environ is None else environ
    try:
        found = sum(bool(re.fullmatch(r"nvidia[0-9]+", name)) for name in os.listdir(devices))
    except OSError:
        return 0
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    if found == 0 or wanted is None:
        return found
    count = 0
    for item in wanted.split(","):
        # CUDA stops at the first entry it does not know; entries by UUID (GPU-…, MIG-…) are taken at their word.
        name = item.strip()
        if not (name.isdecimal() and int(name) < found) and not name.startswith(("GPU-", "MIG-")):
            break
        count += 1
    return count
