"""Which NVIDIA GPUs this process can see: by their device files, so that asking costs nothing and needs no library."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from relight.base.errors import PlatformError

DEVICES = Path("/dev")
ANSWER = 10.0
"""Seconds that nvidia-smi may take: a driver that hangs shall not hang us."""


def used() -> int | None:
    """Bytes in use on the GPUs that can be seen, whoever uses them; None where there is no GPU.

    The driver's own counter by process goes by the host's process ids, which a container does not know: who measures
    takes the difference, while nothing else begins or ends on these GPUs. PlatformError where the driver does not tell.
    """
    if visible() == 0:
        return None
    program = shutil.which("nvidia-smi")
    if program is None:
        raise PlatformError("the memory of the GPUs cannot be read: there are device files, but no nvidia-smi")
    query = [program, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=ANSWER, check=True).stdout
        return sum(int(line) for line in answer.split()) * 2**20
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise PlatformError(f"the memory of the GPUs cannot be read: nvidia-smi does not tell: {error}") from error


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
