"""The autoscaler's decisions as JSON lines in a file (``relight up --trace-decisions FILE``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from relight.base.errors import PlatformError


class DecisionLog:
    """Appends records. A line is written whole, at once: who reads the file while it grows sees no half of one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def open(self) -> None:
        """PlatformError if the file cannot be written."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab", buffering=0)
        except OSError as error:
            raise PlatformError(f"decisions cannot be traced to {self._path}: {error.strerror}") from error

    def write(self, record: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.write(orjson.dumps(record) + b"\n")

    def close(self) -> None:
        """Calling again does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None
