"""How many events a second are accepted durably, and how long a chain of three warm functions takes by events.

    python benchmarks/events.py             # about a minute
    python benchmarks/events.py --check     # a few seconds; fails on any wrong count, prints no judgement on speed

The broker runs in a process of its own on the loop that `relight up` uses, its log with synchronous=FULL and group
commit on the disk of the temporary folder; 202 means that the event is on disk. Producers are one process with that
many connections, each of which waits for its answer. The chain is t.0 -> step -> t.1 -> step -> t.2 -> step -> t.3 ->
a listener: three functions on relight's own protocol, four deliveries, three replies, seven commits.

In the same run: the floor, which is the same rows in the same SQLite settings without HTTP, events or triggers; and
NATS JetStream (file storage) where nats-server and nats-py are installed, with consumers written by hand. JetStream
acknowledges before it syncs to disk (every two minutes by default), so that it promises less.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httptools
import uvloop

from relight.cli.up import SWITCH
from relight.local.eventing.controller import Eventing
from relight.local.kube import kinds
from relight.local.kube.store import ObjectStore
from relight.runtime.context import FunctionSettings
from relight.runtime.engine import Engine
from relight.runtime.hosts.server import Server
from relight.runtime.lifecycle import State
from relight.runtime.step import Step
from relight.wire.cloudevents import Event, encode_binary

DATA = json.dumps({"text": "x" * 980}).encode()
PRODUCERS = (1, 8, 32)
STEPS = 3


# -- the processes


async def until_told() -> None:
    done = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, done.set)
    await done.wait()


def trigger(name: str, type_: str, uri: str, **annotations: str) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "default", "name": name, "annotations": annotations},
        "spec": {"broker": "b", "filters": [{"exact": {"type": type_}}], "subscriber": {"uri": uri}},
    }


async def broker(folder: Path, steps_port: int, end_port: int) -> None:
    """A Broker with the chain's Triggers, and a paused one: what it wants is accepted and kept."""
    sys.setswitchinterval(SWITCH)
    store = ObjectStore.open(folder / "objects.db")
    store.create(kinds.BROKER, {"metadata": {"namespace": "default", "name": "b"}, "spec": {}})
    for at in range(STEPS):
        store.create(kinds.TRIGGER, trigger(f"step-{at}", f"t.{at}", f"http://127.0.0.1:{steps_port + at}/"))
    store.create(kinds.TRIGGER, trigger("end", f"t.{STEPS}", f"http://127.0.0.1:{end_port}/"))
    kept = trigger("kept", "kept", "http://127.0.0.1:9/", **{"relight.dev/paused": "true"})
    store.create(kinds.TRIGGER, kept)
    eventing = Eventing(store, folder / "events.db")
    print(await eventing.start("127.0.0.1", 0), flush=True)
    await until_told()
    await eventing.stop()
    store.close()


class Next(Step):
    """Passes the data on under the next type."""

    def __init__(self, at: int) -> None:
        self.reply_type = f"t.{at + 1}"

    def run(self, data: Any, event: Event | None) -> Any:
        return data


async def steps() -> None:
    """Three functions on three ports in a row."""
    servers = []
    for base in range(20_000, 60_000, 7):
        with contextlib.suppress(OSError):
            listeners = [socket.create_server(("127.0.0.1", base + at)) for at in range(STEPS)]
            break
    for at, listener in enumerate(listeners):
        function, ready = Next(at), threading.Event()
        settings = FunctionSettings.from_environ({"K_SERVICE": f"step-{at}"})
        engine = Engine(lambda function=function: function, settings)  # type: ignore[misc]
        engine.listen(lambda state, _, ready=ready: ready.set() if state is State.READY else None)  # type: ignore[misc]
        engine.start()
        await asyncio.to_thread(ready.wait)
        server = Server(engine)
        await server.start([listener])
        servers.append(server)
    print(base, flush=True)
    await until_told()
    for server in servers:
        await server.stop()


class Producer(asyncio.Protocol):
    """Posts the next event when the answer to the last has come."""

    def __init__(self, number: int, port: int, result: dict[str, Any], until: float) -> None:
        self.number, self.port, self.result, self.until = number, port, result, until
        self.sent = 0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.parser = httptools.HttpResponseParser(self)
        self.post()

    def post(self) -> None:
        self.began = time.perf_counter()
        self.sent += 1
        self.transport.write(
            b"POST /default/b HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"
            b"ce-specversion: 1.0\r\nce-id: %d-%d\r\nce-source: /bench\r\nce-type: kept\r\ncontent-length: %d\r\n\r\n%s"
            % (self.port, self.number, self.sent, len(DATA), DATA)
        )

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        now = time.perf_counter()
        if self.parser.get_status_code() == 202:
            self.result["waits"].append(now - self.began)
        else:
            self.result["wrong"] += 1
        if now < self.until:
            self.post()
        elif not self.done.done():
            self.done.set_result(None)
            self.transport.close()


async def produce(port: int, producers: int, seconds: float) -> None:
    loop, result = asyncio.get_running_loop(), {"waits": [], "wrong": 0}
    began = time.perf_counter()
    made = [
        await loop.create_connection(lambda n=n: Producer(n, port, result, began + seconds), "127.0.0.1", port)  # type: ignore[misc]
        for n in range(producers)
    ]
    await asyncio.gather(*[protocol.done for _, protocol in made])
    print(json.dumps({**result, "seconds": time.perf_counter() - began}))


@contextlib.contextmanager
def child(*arguments: str) -> Iterator[int]:
    """A role of this script in a process of its own; the number that it prints first."""
    process = subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


# -- measuring


def floor(folder: Path, seconds: float) -> float:
    """Rows of that size a second into SQLite with the log's settings, 16 to a commit: what disk and SQLite allow."""
    database = sqlite3.connect(folder / "floor.db", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, data BLOB)")
    count, began = 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        database.execute("BEGIN IMMEDIATE")
        database.executemany("INSERT INTO events (data) VALUES (?)", [(DATA,)] * 16)
        database.execute("COMMIT")
        count += 16
    database.close()
    return count / (time.perf_counter() - began)


def accepted(port: int, producers: int, seconds: float) -> tuple[float, list[float], int]:
    command = [sys.executable, __file__, "--role", "produce", f"--port={port}"]
    command += [f"--producers={producers}", f"--seconds={seconds:g}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + 30).stdout
    result = json.loads(text)
    return len(result["waits"]) / result["seconds"], result["waits"], result["wrong"]


def share(samples: list[float], part: float) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] * 1000


class End(asyncio.Protocol):
    """The listener at the chain's end: takes an event and tells its data."""

    def __init__(self, arrived: Callable[[bytes], None]) -> None:
        self.arrived = arrived

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        body, self.body = self.body, b""
        self.transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        self.arrived(body)


@contextlib.asynccontextmanager
async def arriving(port: int) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
    """Waits for the event of a number at the chain's end."""
    waiting: dict[int, asyncio.Future[None]] = {}

    def arrived(body: bytes) -> None:
        number = json.loads(body)["number"]
        future = waiting.pop(number, None)
        if future is not None and not future.done():
            future.set_result(None)

    def expect(number: int) -> Awaitable[None]:
        waiting[number] = asyncio.get_running_loop().create_future()
        return asyncio.wait_for(waiting[number], 30)

    server = await asyncio.get_running_loop().create_server(lambda: End(arrived), "127.0.0.1", port)
    try:
        yield expect
    finally:
        server.close()


def numbered(number: int) -> bytes:
    return json.dumps({"number": number, "text": "x" * 960}).encode()


async def chain(port: int, end_port: int, events: int) -> list[float]:
    """From the post to the arrival at the end, one event at a time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    samples = []
    async with arriving(end_port) as expect:
        for number in range(events + 10):
            event = Event(str(number), "/bench", "t.0", {"datacontenttype": "application/json"}, numbered(number))
            headers, body = encode_binary(event)
            lines = [f"host: 127.0.0.1:{port}", f"content-length: {len(body)}", *(f"{k}: {v}" for k, v in headers)]
            arrival = asyncio.ensure_future(expect(number))
            began = time.perf_counter()
            writer.write(b"POST /default/b HTTP/1.1\r\n" + "\r\n".join(lines).encode() + b"\r\n\r\n" + body)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 202"), head
            await arrival
            if number >= 10:  # the first few open connections
                samples.append(time.perf_counter() - began)
    writer.close()
    return samples


# -- the peer


@contextlib.contextmanager
def nats(folder: Path) -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = int(sock.getsockname()[1])
    command = ["nats-server", "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder / "nats")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(500):
            with socket.socket() as sock:
                if sock.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait()


async def peer(port: int, seconds: float, events: int) -> tuple[dict[int, float], list[float]]:
    """JetStream: acknowledged publishes a second, and the same chain with a pull consumer per step."""
    import nats as client

    link = await client.connect(f"nats://127.0.0.1:{port}")
    stream = link.jetstream()
    await stream.add_stream(name="kept", subjects=["kept"])
    await stream.add_stream(name="chain", subjects=["t.*"])
    rates = {}
    for producers in PRODUCERS:
        count, until = 0, time.perf_counter() + seconds

        async def publish(until: float = until) -> None:
            nonlocal count
            while time.perf_counter() < until:
                await stream.publish("kept", DATA)
                count += 1

        began = time.perf_counter()
        await asyncio.gather(*[publish() for _ in range(producers)])
        rates[producers] = count / (time.perf_counter() - began)
    waiting: dict[int, asyncio.Future[None]] = {}

    async def step(at: int) -> None:
        pull = await stream.pull_subscribe(f"t.{at}", durable=f"step-{at}")
        while True:
            with contextlib.suppress(client.errors.TimeoutError):
                for message in await pull.fetch(1, timeout=5):
                    if at < STEPS:
                        await stream.publish(f"t.{at + 1}", message.data)
                    await message.ack_sync()
                    if at == STEPS:
                        waiting.pop(json.loads(message.data)["number"]).set_result(None)

    tasks = [asyncio.ensure_future(step(at)) for at in range(STEPS + 1)]
    samples = []
    for number in range(events + 10):
        waiting[number] = asyncio.get_running_loop().create_future()
        arrival = waiting[number]
        began = time.perf_counter()
        await stream.publish("t.0", numbered(number))
        await asyncio.wait_for(arrival, 30)
        if number >= 10:
            samples.append(time.perf_counter() - began)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await link.close()
    return rates, samples


def told(name: str, samples: list[float]) -> str:
    marks = "  ".join(f"p{part * 100:g} {share(samples, part):.2f}" for part in (0.5, 0.9, 0.99))
    return f"  {name:<10} {marks}  mean {statistics.fmean(samples) * 1000:.2f} ms over {len(samples)} events"


def measure(check: bool) -> int:
    seconds, events = (0.5, 20) if check else (5.0, 400)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"Python {platform.python_version()}  SQLite {sqlite3.sqlite_version}  {os.cpu_count()} CPUs  load {load}")
    wrong = 0
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relight-events-")))
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            end_port = int(sock.getsockname()[1])
        steps_port = stack.enter_context(child("--role", "steps"))
        arguments = ["--folder", str(folder), f"--port={steps_port}", f"--end={end_port}"]
        port = stack.enter_context(child("--role", "broker", *arguments))
        least = floor(folder, seconds / 2)
        print(f"accepted on disk, {len(DATA)} bytes each (floor: {least:.0f} rows/s, 16 to a commit, no HTTP):")
        total = 0
        rates = {}
        for producers in PRODUCERS:
            rates[producers], waits, bad = accepted(port, producers, seconds)
            wrong += bad
            total += len(waits)
            print(
                f"  {producers:>2} producers {rates[producers]:7.0f} events/s,"
                f" {rates[producers] / least:.2f} of the floor "
                f" p50 {share(waits, 0.5):.2f}  p99 {share(waits, 0.99):.2f} ms"
            )
        samples = asyncio.run(chain(port, end_port, events))
        print(f"a chain of {STEPS} warm functions, one event at a time:")
        print(told("relight", samples))
        print(f"  {'':<10} {share(samples, 0.5) / (STEPS + 1):.2f} ms p50 for each of its {STEPS + 1} deliveries")
        database = sqlite3.connect(f"file:{folder}/events.db?mode=ro", uri=True)
        (kept,) = database.execute("SELECT count(*) FROM events WHERE type = 'kept'").fetchone()
        database.close()
        if kept != total:
            print(f"WRONG: {total} events were accepted, {kept} are in the log")
            wrong += 1
        with contextlib.suppress(ImportError):
            import nats as _  # noqa: F401

            if shutil.which("nats-server"):
                there = stack.enter_context(nats(folder))
                peer_rates, peer_samples = asyncio.run(peer(there, seconds / 2, events))
                print("NATS JetStream, acknowledged but not synced:")
                for producers, rate in peer_rates.items():
                    ratio = rates[producers] / rate
                    print(f"  {producers:>2} producers {rate:7.0f} messages/s; relight / JetStream {ratio:.2f}")
                print(told("JetStream", peer_samples))
                print(f"  relight / JetStream p50 {share(samples, 0.5) / share(peer_samples, 0.5):.2f}")
    print(f"wrong: {wrong}")
    return 1 if wrong or len(samples) != events else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="a short run that only judges the counts")
    parser.add_argument("--role", choices=("broker", "steps", "produce"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    for name in ("--port", "--end", "--producers"):
        parser.add_argument(name, type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=1.0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    roles: dict[str, Callable[[], Any]] = {
        "broker": lambda: broker(given.folder, given.port, given.end),
        "steps": steps,
        "produce": lambda: produce(given.port, given.producers, given.seconds),
    }
    if given.role is None:
        return measure(given.check)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(roles[given.role]())
    return 0


if __name__ == "__main__":
    sys.exit(main())
