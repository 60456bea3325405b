"""A broker on a real store and real HTTP subscribers, for the tests beside this file."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from aiohttp import web

from relight.local.eventing.controller import Eventing
from relight.local.kube import kinds
from relight.local.kube.store import ObjectStore
from relight.wire import cloudevents
from relight.wire.cloudevents import Event
from relight.wire.http import Headers

DEADLINE = 30.0
FAST = {"retry": 3, "backoffPolicy": "linear", "backoffDelay": "PT0.01S"}

Handler = Callable[["Received"], Awaitable[web.Response] | web.Response]


def run(
    story: Coroutine[Any, Any, None],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
) -> None:
    """Run an async story to its end, within the deadline, by default on the loop that `relight up` uses."""

    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE):
            await story

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(bounded())


@dataclass(frozen=True)
class Received:
    path: str
    headers: Headers
    body: bytes

    @property
    def event(self) -> Event:
        return cloudevents.decode(self.headers, self.body)


class Subscriber:
    """An HTTP server that keeps what it gets and answers by path; 202 where nothing else was said."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.answers: dict[str, Handler] = {}
        self._came = asyncio.Condition()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Subscriber]:
        runner = web.ServerRunner(web.Server(self._handle))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        received = Received(request.path, Headers.from_raw(request.raw_headers), await request.read())
        self.received.append(received)
        async with self._came:
            self._came.notify_all()
        handler = self.answers.get(request.path)
        if handler is None:
            return web.Response(status=202)
        answer = handler(received)
        return answer if isinstance(answer, web.Response) else await answer

    def at(self, path: str) -> list[Received]:
        return [one for one in self.received if one.path == path]

    async def until(self, count: int, path: str) -> list[Received]:
        """Wait until so many requests came to a path."""
        async with self._came:
            await self._came.wait_for(lambda: len(self.at(path)) >= count)
        return self.at(path)


def reply(event: Event, **headers: str) -> web.Response:
    items, body = cloudevents.encode_binary(event)
    return web.Response(status=200, headers=dict(items) | headers, body=body)


@asynccontextmanager
async def broker_program(folder: Path, url: str, *awaited: str) -> AsyncIterator[str]:
    """The broker's URL of ``broker_process.py`` beside this file; killed with SIGKILL at the block's end."""
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("broker_process.py")),
        str(folder),
        url,
        *awaited,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert program.stdout is not None
        yield f"http://127.0.0.1:{int(await program.stdout.readline())}/default/rec"
    finally:
        program.kill()
        await program.wait()


class Machine:
    """An ``Eventing`` on a store with a broker ``default/rec``."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.store = ObjectStore.open(folder / "objects.db", now=options.get("now", time.time))
        self.eventing = Eventing(self.store, folder / "events.db", **options)
        self.session: aiohttp.ClientSession
        self.url = ""

    @asynccontextmanager
    async def up(self) -> AsyncIterator[Machine]:
        if self.store.get(kinds.BROKER, "default", "rec") is None:
            self.store.create(kinds.BROKER, {"metadata": {"namespace": "default", "name": "rec"}, "spec": {}})
        port = await self.eventing.start("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{port}"
        try:
            async with aiohttp.ClientSession() as self.session:
                yield self
        finally:
            await self.eventing.stop()
            self.store.close()

    async def trigger(self, name: str, type: str, uri: str, **spec: Any) -> dict[str, Any]:
        """A Trigger on a type, which has been seen by the broker when this returns."""
        self.store.create(
            kinds.TRIGGER,
            {
                "metadata": {"namespace": "default", "name": name, "annotations": spec.pop("annotations", {})},
                "spec": {
                    "broker": "rec",
                    "filters": [{"exact": {"type": type}}],
                    "subscriber": {"uri": uri},
                    "delivery": FAST,
                }
                | spec,
            },
        )
        return await self.status(kinds.TRIGGER, name)

    async def status(self, kind: kinds.Kind, name: str) -> dict[str, Any]:
        """The object once its status says something about its present generation."""
        watch = self.store.watch(kind, "default")
        async for change in watch:
            obj = change.object
            seen = (obj.get("status") or {}).get("observedGeneration")
            if obj["metadata"]["name"] == name and seen == obj["metadata"]["generation"]:
                watch.close()
                return obj
        raise AssertionError("the store was closed")

    async def post(self, event: Event, *, structured: bool = False, broker: str = "rec", **headers: str) -> int:
        encode = cloudevents.encode_structured if structured else cloudevents.encode_binary
        items, body = encode(event)
        async with self.session.post(
            f"{self.url}/default/{broker}", data=body, headers=dict(items) | headers
        ) as response:
            return response.status

    async def post_batch(self, events: list[Event], broker: str = "rec") -> int:
        items, body = cloudevents.encode_batch(events)
        async with self.session.post(f"{self.url}/default/{broker}", data=body, headers=dict(items)) as response:
            return response.status

    async def annotate(self, trigger: str, **annotations: str) -> None:
        """Replace a Trigger's annotations; returns when the broker has seen it."""
        old = self.store.get(kinds.TRIGGER, "default", trigger)
        assert old is not None
        self.store.update(kinds.TRIGGER, {**old, "metadata": {**old["metadata"], "annotations": annotations}})
        await asyncio.sleep(0)
        await self.eventing.idle()

    async def settled(self) -> None:
        """Wait until nothing is pending, in the lanes and in the log."""
        while self.eventing.dispatcher.pending or await self.eventing.log.pending():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
