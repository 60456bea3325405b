"""A step that computes in Python, and so gives the interpreter's lock back only when it is asked to."""

from __future__ import annotations

import time
from typing import Any

from relight.sdk import Event, Step


class Busy(Step):
    concurrency = 1

    def run(self, data: Any, event: Event | None) -> Any:
        end = time.monotonic() + data["seconds"]
        turns = 0
        while time.monotonic() < end:
            turns += 1
        return {"turns": turns}


def new() -> Busy:
    return Busy()
