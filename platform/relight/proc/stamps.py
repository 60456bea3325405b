"""What a process has imported, as its files were then: by that another process sees that code has changed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable


def stamp(path: str) -> list[int]:
    """Time of change in nanoseconds and size; zeros where there is nothing."""
    try:
        stat = os.stat(path)
    except OSError:
        return [0, 0]
    return [stat.st_mtime_ns, stat.st_size]


def imported(failed: Iterable[str]) -> dict[str, list[int]]:
    """The interpreter and the files of all modules of this process.

    Where modules could not be imported (``failed``), also the folders where they may appear.
    """
    paths = {sys.executable}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and os.path.isabs(path):
            paths.add(path)
    if any(failed):
        paths.update(folder for folder in sys.path if os.path.isdir(folder))
    return {path: stamp(path) for path in sorted(paths)}
