"""A program: a broker with the Triggers a → /a and b → /b of a subscriber. Prints its port, runs until it is killed.

Arguments: state folder, URL of the subscriber.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from relight.local.eventing.controller import Eventing
from relight.local.kube import kinds
from relight.local.kube.store import ObjectStore


async def main(folder: Path, url: str) -> None:
    store = ObjectStore.open(folder / "objects.db")
    if not store.list(kinds.BROKER)[0]:
        store.create(kinds.BROKER, {"metadata": {"namespace": "default", "name": "rec"}, "spec": {}})
        for name in ("a", "b"):
            spec = {
                "broker": "rec",
                "filters": [{"exact": {"type": name}}],
                "subscriber": {"uri": f"{url}/{name}"},
                "delivery": {"backoffDelay": "PT0.01S", "backoffPolicy": "linear"},
            }
            store.create(kinds.TRIGGER, {"metadata": {"namespace": "default", "name": name}, "spec": spec})
    eventing = Eventing(store, folder / "events.db")
    print(await eventing.start("127.0.0.1", 0), flush=True)
    await asyncio.Event().wait()


asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
