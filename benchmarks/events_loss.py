"""Events while everything is killed: none is lost, none has two committed answers, what is run again is told.

    python benchmarks/events_loss.py             # 20,000 events, 30 kills; some minutes
    python benchmarks/events_loss.py --kills 5 --events 2000
    python benchmarks/events_loss.py --check     # 300 events, 3 kills

A broker process and two function processes; t.in -> work -> t.done -> end. A producer posts each event until it is
accepted, so that some are posted twice; now and then, at times that the seed decides, one of the processes is killed
with SIGKILL and started again. 1 in 97 events is poisoned: the function refuses it. Functions write every run into a
file that they sync, outside of the platform, before they answer; the last one keeps what reached the end.

Judged at the end: every accepted event reached the end or, if poisoned, is a dead letter; nothing else is; no event has
two answers that were committed (entered the log as events of their own); an event was run more than once only where a
kill was, or where it was accepted twice.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from relight.local.eventing.controller import Eventing
from relight.local.eventing.log import Limits
from relight.local.kube import kinds
from relight.local.kube.store import ObjectStore
from relight.runtime.context import FunctionSettings
from relight.runtime.engine import Engine
from relight.runtime.hosts.server import Server
from relight.runtime.lifecycle import State
from relight.runtime.step import Step
from relight.sdk import BadInput
from relight.wire.cloudevents import Event

POISON = 97
PRODUCERS = 16
IN_FLIGHT = 8
"""Deliveries at once per Trigger, by default."""
DELIVERY = {"retry": 1000, "backoffPolicy": "linear", "backoffDelay": "PT0.02S"}


# -- the processes


def bound(port: int) -> socket.socket:
    """A listener on a port that a killed process may have had a moment ago."""
    return socket.create_server(("127.0.0.1", port), reuse_port=False, backlog=256)


async def broker(folder: Path, port: int, functions: list[int]) -> None:
    store = ObjectStore.open(folder / "objects.db")
    if not store.list(kinds.BROKER)[0]:
        store.create(kinds.BROKER, {"metadata": {"namespace": "default", "name": "b"}, "spec": {}})
        for type_, name, at in (("t.in", "work", functions[0]), ("t.done", "end", functions[1])):
            spec = {
                "broker": "b",
                "filters": [{"exact": {"type": type_}}],
                "subscriber": {"uri": f"http://127.0.0.1:{at}/"},
                "delivery": DELIVERY,
            }
            store.create(kinds.TRIGGER, {"metadata": {"namespace": "default", "name": name}, "spec": spec})
    eventing = Eventing(store, folder / "events.db", limits=Limits(hops=1_000_000))
    await eventing.start("127.0.0.1", port)
    print("up", flush=True)
    await asyncio.Event().wait()


class Noting(Step):
    """Writes each run down, on disk, before it answers: the proof that stands outside of the platform."""

    concurrency = 4

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._lock = threading.Lock()

    def note(self, event: Event) -> None:
        with self._lock:
            self._file.write(f"{event.get('number')} {event.id}\n".encode())
            os.fdatasync(self._file.fileno())


class Work(Noting):
    reply_type = "t.done"

    def run(self, data: Any, event: Event | None) -> Any:
        assert event is not None
        self.note(event)
        if data["number"] % POISON == 0:
            raise BadInput("this one is poisoned")
        return {"number": data["number"]}


class End(Noting):
    def run(self, data: Any, event: Event | None) -> Any:
        assert event is not None
        self.note(event.replace(number=data["number"]))


async def function(name: str, path: Path, port: int) -> None:
    step: Step = Work(path) if name == "work" else End(path)
    engine, ready = Engine(lambda: step, FunctionSettings.from_environ({"K_SERVICE": name})), threading.Event()
    engine.listen(lambda state, _: ready.set() if state is State.READY else None)
    engine.start()
    await asyncio.to_thread(ready.wait)
    server = Server(engine)
    await server.start([bound(port)])
    print("up", flush=True)
    await asyncio.Event().wait()


# -- the run


@dataclass
class Process:
    """A process of this script that is killed and started again."""

    arguments: list[str]
    folder: Path
    process: asyncio.subprocess.Process | None = None
    kills: int = 0

    async def start(self) -> None:
        with (self.folder / "stderr.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, __file__, *self.arguments, stdout=asyncio.subprocess.PIPE, stderr=log
            )
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), 60)
        assert line == b"up\n", f"{self.arguments}: {(self.folder / 'stderr.log').read_text()[-2000:]}"

    async def kill(self) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()


@dataclass
class Run:
    """What happened."""

    accepted: set[int] = field(default_factory=set)
    posts: Counter[int] = field(default_factory=Counter)
    """Posts that may have been accepted: answered with 202, or not answered at all."""


async def produce(run: Run, port: int, events: int, seed: int) -> None:
    numbers = iter(range(events))
    limit = aiohttp.TCPConnector(limit=PRODUCERS)

    async def one(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            headers = {
                "ce-specversion": "1.0",
                "ce-id": f"{seed}-{number}",
                "ce-source": "/loss",
                "ce-type": "t.in",
                "ce-number": str(number),
                "content-type": "application/json",
            }
            while number not in run.accepted:
                try:
                    async with session.post(
                        f"http://127.0.0.1:{port}/default/b",
                        data=json.dumps({"number": number}),
                        headers=headers,
                        timeout=aiohttp.ClientTimeout(total=10),
                    ) as response:
                        if response.status == 202:
                            run.posts[number] += 1
                            run.accepted.add(number)
                            continue
                        assert response.status == 503, await response.text()
                except aiohttp.ClientConnectorError:
                    pass  # nobody there: surely not accepted
                except (aiohttp.ClientError, TimeoutError):
                    run.posts[number] += 1
                await asyncio.sleep(0.05)

    async with aiohttp.ClientSession(connector=limit) as session:
        await asyncio.gather(*[one(session) for _ in range(PRODUCERS)])


def lines(path: Path) -> list[str]:
    """What a function has written down: whole lines."""
    if not path.exists():
        return []
    return path.read_text().rpartition("\n")[0].splitlines()


def rest(folder: Path) -> int:
    """Deliveries that are still to do."""
    with contextlib.closing(sqlite3.connect(f"file:{folder}/events.db?mode=ro", uri=True)) as database:
        return int(database.execute("SELECT count(*) FROM deliveries WHERE dead = 0").fetchone()[0])


async def measure(events: int, kills: int, seed: int) -> int:
    rng = random.Random(seed)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="relight-loss-") as name, contextlib.ExitStack() as sockets:
        folder = Path(name)
        held = [sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports = [one.getsockname()[1] for one in held]
        sockets.close()
        processes = {
            kind: Process(["--role", kind, "--folder", name, "--ports", *map(str, ports)], folder)
            for kind in ("work", "end", "broker")
        }
        for one in processes.values():
            await one.start()
        victims = (list(processes) * kills)[:kills]
        rng.shuffle(victims)
        run = Run()
        producing = asyncio.ensure_future(produce(run, ports[0], events, seed))
        try:
            for number, kind in enumerate(victims):
                # Kills are spread over the run by what has come to its end, so that each falls into work.
                share = (number + rng.random()) / kills
                while len(lines(folder / "end.log")) < share * events * 0.9 and not producing.done():  # noqa: ASYNC110
                    await asyncio.sleep(0.03)
                victim = processes[kind]
                victim.kills += 1
                await victim.kill()
                await asyncio.sleep(rng.random() * 0.3)
                await victim.start()
            await producing
            while rest(folder):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        finally:
            producing.cancel()
            for one in processes.values():
                await one.kill()
        return judge(folder, run, events, {kind: one.kills for kind, one in processes.items()}, began)


def judge(folder: Path, run: Run, events: int, kills: dict[str, int], began: float) -> int:
    ran = Counter(int(line.split()[0]) for line in lines(folder / "work.log"))
    ended = {int(line.split()[0]) for line in lines(folder / "end.log")}
    with contextlib.closing(sqlite3.connect(folder / "events.db")) as database:
        dead = {
            int(id_.partition("-")[2])
            for (id_,) in database.execute("SELECT e.id FROM deliveries d JOIN events e ON e.seq = d.event")
        }
        # A committed answer is a reply that entered the log: the hop of the event whose cause it was.
        answers = Counter(
            int(id_.partition("-")[2])
            for (id_,) in database.execute(
                "SELECT c.id FROM hops r JOIN (SELECT DISTINCT event, id FROM hops) c ON c.event = r.cause"
                " WHERE r.type = 't.done'"
            )
        )
    poisoned = {number for number in range(events) if number % POISON == 0}
    good = set(range(events)) - poisoned
    lost = good - ended
    twice = {number: count for number, count in answers.items() if count > 1}
    again = {number: count for number, count in ran.items() if count > 1}
    # At a kill as many runs of a function are cut short as its Trigger has under way.
    extra = sum(max(0, count - max(1, run.posts[number])) for number, count in ran.items())
    most = IN_FLIGHT * sum(kills.values())
    print(f"{events} events, {sum(kills.values())} kills {kills}, {time.monotonic() - began:.0f} s")
    print(
        f"  accepted {len(run.accepted)}, of these {sum(1 for count in run.posts.values() if count > 1)} posted twice"
    )
    print(f"  reached the end {len(ended & good)}, lost {len(lost)}")
    print(f"  dead letters {len(dead)}, poisoned {len(poisoned)}, the same: {dead == poisoned}")
    print(f"  events with one committed answer {len(answers)}, with two {len(twice)}")
    print(f"  runs {sum(ran.values())}; events that were run more than once {len(again)} ({sum(again.values())} runs)")
    print(f"  runs beyond one for each acceptance {extra}, at most {most} were in flight at the kills")
    faults = [
        *(["an event was not accepted"] if len(run.accepted) != events else []),
        *([f"lost: {sorted(lost)[:10]}"] if lost else []),
        *([f"dead letters differ: {sorted(dead ^ poisoned)[:10]}"] if dead != poisoned else []),
        *([f"two committed answers: {dict(list(twice.items())[:10])}"] if twice else []),
        *([f"answers: {len(answers)} of {len(good)}"] if set(answers) != good else []),
        *([f"{extra} runs more than were asked for; {most} were in flight at the kills"] if extra > most else []),
    ]
    for fault in faults:
        print(f"WRONG: {fault}")
    return 1 if faults else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="300 events, 3 kills")
    parser.add_argument("--role", choices=("broker", "work", "end"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--ports", type=int, nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if given.role is None:
            events, kills = (300, 3) if given.check else (given.events, given.kills)
            return runner.run(measure(events, kills, given.seed))
        if given.role == "broker":
            runner.run(broker(given.folder, given.ports[0], given.ports[1:]))
        else:
            at = 1 if given.role == "work" else 2
            runner.run(function(given.role, given.folder / f"{given.role}.log", given.ports[at]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
