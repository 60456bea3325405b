"""A program: a broker with the Triggers a → /a and b → /b of a subscriber. Prints its port, runs until it is killed.

Arguments: state folder, URL of the subscriber, and, if that is to be waited for, KIND/NAME of an object to be ready.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from relight.local.eventing.controller import Eventing
from relight.local.kube import kinds
from relight.local.kube.store import ObjectStore


async def main(folder: Path, url: str, awaited: str | None = None) -> None:
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
    port = await eventing.start("127.0.0.1", 0)
    if awaited is not None:
        await ready(store, *awaited.split("/"))
    print(port, flush=True)
    await asyncio.Event().wait()


async def ready(store: ObjectStore, kind: str, name: str) -> None:
    watch = store.watch(next(one for one in kinds.KINDS if one.kind == kind), "default")
    async for change in watch:
        rows = (change.object.get("status") or {}).get("conditions") or ()
        states = {row["type"]: row["status"] for row in rows}
        if change.object["metadata"]["name"] == name and states.get("Ready") == "True":
            watch.close()
            return


asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
