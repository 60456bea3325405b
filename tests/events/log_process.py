"""A program: accepts events into a log, many at once, and prints each id when it is acknowledged, until it is killed.

Argument: the log's file.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from pathlib import Path

from relight.local.eventing.log import EventLog
from relight.local.eventing.records import Incoming
from relight.wire.cloudevents import Event


async def main(path: Path) -> None:
    log = EventLog(path)
    await log.start()
    numbers = itertools.count()

    async def sender() -> None:
        for number in numbers:
            event = Event.of("t", "/s", b"x" * 500, id=str(number))
            await log.accept(Incoming("default", "rec", event, ("trigger-1", "trigger-2")))
            print(number, flush=True)

    await asyncio.gather(*[sender() for _ in range(16)])


asyncio.run(main(Path(sys.argv[1])))
