"""A step that takes its time, to load (SLOW_LOAD, seconds) and to run."""

from __future__ import annotations

import time
from typing import Any

from relight.sdk import Event, Step


class Slow(Step):
    def load(self) -> None:
        time.sleep(float(self.context.env.get("SLOW_LOAD", "0")))

    def run(self, data: Any, event: Event | None) -> Any:
        time.sleep(data["seconds"])
        return {"slept": data["seconds"]}


def new() -> Slow:
    return Slow()
