"""What one version of a model has done since it was loaded, as Triton's statistics extension writes it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class _Duration:
    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds

    def json(self) -> dict[str, int]:
        return {"count": self.count, "ns": round(self.seconds * 1e9)}


class Statistics:
    """Counters of one model, for all threads. Durations are in seconds until they are written."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._success, self._fail, self._queue, self._compute = (_Duration() for _ in range(4))
        self._rows = 0
        self._executions: dict[int, _Duration] = {}
        self._last = 0.0

    def succeeded(self, rows: int, queue: float, compute: float) -> None:
        """A request was answered: it had ``rows`` rows and waited and was computed so long."""
        with self._lock:
            self._success.add(queue + compute)
            self._queue.add(queue)
            self._compute.add(compute)
            self._rows += rows
            self._last = time.time()

    def failed(self, seconds: float) -> None:
        """A request failed, was refused or was given up."""
        with self._lock:
            self._fail.add(seconds)

    def executed(self, rows: int, seconds: float) -> None:
        """The model computed a batch of ``rows`` rows."""
        with self._lock:
            self._executions.setdefault(rows, _Duration()).add(seconds)

    def json(self, name: str, version: str | None) -> dict[str, Any]:
        with self._lock:
            none = _Duration().json()
            return {
                "name": name,
                "version": version or "",
                "last_inference": round(self._last * 1000),
                "inference_count": self._rows,
                "execution_count": sum(batch.count for batch in self._executions.values()),
                "inference_stats": {
                    "success": self._success.json(),
                    "fail": self._fail.json(),
                    "queue": self._queue.json(),
                    "compute_input": none,
                    "compute_infer": self._compute.json(),
                    "compute_output": none,
                    "cache_hit": none,
                    "cache_miss": none,
                },
                "batch_stats": [
                    {
                        "batch_size": rows,
                        "compute_input": none,
                        "compute_infer": batch.json(),
                        "compute_output": none,
                    }
                    for rows, batch in sorted(self._executions.items())
                ],
            }
