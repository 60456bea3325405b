"""Requests while everything moves: up from zero and back, rollouts, replicas killed. None is lost.

    python benchmarks/nothing_lost.py                    # 100,000 requests; some minutes
    python benchmarks/nothing_lost.py --requests 10000
    python benchmarks/nothing_lost.py --check            # 600 requests, one of each

Two functions on a running platform: one is called all the time, with bursts over it, while new revisions of it are
rolled out and its replicas are killed with SIGKILL; the other is called in waves, and is at zero between them. Half of
the requests are GETs, which may be sent twice, half are POSTs, which may not. Each replica writes down, in a file that
outlives it, when it begins and when it has done each request.

Judged at the end: every answer is a 2xx with the request's own number in it, but for POSTs whose replica was killed
before it had answered (they are told 502: whether it has done what it was asked to nobody knows); every POST that was
answered 200 was done exactly once; none was begun twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from relight.net.kube import Kube
from relight.testing.platform import RunningPlatform, running_platform

SERVING = "serving.knative.dev/v1"
STEP = """
import os
import time

from relight.sdk import Step


class Counts(Step):
    def load(self):
        self.notes = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def run(self, data, event):
        number = data["number"]
        os.write(self.notes, f"begun {number} {os.getpid()}\\n".encode())
        time.sleep(0.002)
        os.write(self.notes, f"done {number} {os.getpid()}\\n".encode())
        return {"number": number, "pid": os.getpid(), "version": VERSION}


def new():
    return Counts()


VERSION = 0
"""
SAFE_SHARE = 0.5
"""Of the requests: those that are GETs of what every function answers."""


@dataclass
class Seen:
    """What callers saw."""

    answered: int = 0
    by_status: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    excused: list[int] = field(default_factory=list)
    """Numbers of POSTs that were told that their replica was lost."""
    done: list[int] = field(default_factory=list)
    """Numbers of POSTs that were answered."""
    slowest: float = 0.0


class Load:
    """Callers of one function; ``left`` requests are still to be made by all of them together."""

    def __init__(self, url: str, seen: Seen, session: aiohttp.ClientSession, numbers: Any, draw: random.Random) -> None:
        self.url = url
        self.seen = seen
        self.session = session
        self.numbers = numbers
        self.draw = draw

    async def one(self) -> None:
        seen, number = self.seen, next(self.numbers)
        safe = self.draw.random() < SAFE_SHARE
        begun = time.perf_counter()
        try:
            if safe:
                async with self.session.get(f"{self.url}/health/readiness") as response:
                    status, body = response.status, await response.read()
            else:
                async with self.session.post(self.url, json={"number": number}) as response:
                    status, body = response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            seen.wrong.append(f"{'GET' if safe else 'POST'} {number}: {error!r}")
            return
        seen.slowest = max(seen.slowest, time.perf_counter() - begun)
        seen.answered += 1
        seen.by_status[status] += 1
        if not safe and status == 502:
            seen.excused.append(number)
        elif status >= 300:
            seen.wrong.append(f"{'GET' if safe else 'POST'} {number}: {status} {body[:200]!r}")
        elif not safe:
            if json.loads(body)["number"] != number:
                seen.wrong.append(f"POST {number}: another's answer: {body!r}")
            seen.done.append(number)

    async def many(self, count: int, callers: int, pause: float = 0.0) -> None:
        left = iter(range(count))

        async def caller() -> None:
            for _ in left:
                await self.one()
                if pause:
                    await asyncio.sleep(pause)

        await asyncio.gather(*[caller() for _ in range(callers)])


def function(folder: Path, name: str, version: int) -> Path:
    path = folder / name
    (path / "function").mkdir(parents=True, exist_ok=True)
    (path / "func.yaml").write_text(
        f"specVersion: 0.36.0\nname: {name}\nruntime: python\ninvoke: http\ncreated: 2026-01-01T00:00:00Z\n"
    )
    (path / "pyproject.toml").write_text('[project]\nname = "function"\nversion = "0.1.0"\n')
    (path / "function/__init__.py").write_text("from .func import new\n")
    (path / "function/func.py").write_text(STEP.replace("VERSION = 0", f"VERSION = {version}"))
    return path


def deploy(kube: Kube, folder: Path, name: str, version: int, notes: Path) -> None:
    """Apply a Service and wait until this version of it is ready."""
    annotations = {
        "relight.dev/source": str(function(folder, name, version)),
        "autoscaling.knative.dev/window": "6s",
        "autoscaling.knative.dev/target": "4",
        "autoscaling.knative.dev/max-scale": "3",
        "x/version": str(version),
    }
    container = {"image": "relight", "env": [{"name": "NOTES", "value": str(notes)}]}
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}
    made = {"apiVersion": SERVING, "kind": "Service", "metadata": {"name": name}, "spec": {"template": template}}
    kube.apply(made)
    for _, found in kube.watch(SERVING, "Service", "default", name=name, timeout=120):
        if found["status"].get("latestReadyRevisionName") == f"{name}-{version:05d}" and any(
            row["type"] == "Ready" and row["status"] == "True" for row in found["status"]["conditions"]
        ):
            return
    raise AssertionError(f"version {version} of {name} is not ready")


def at_zero(kube: Kube, name: str, seconds: float = 60.0) -> None:
    for _, found in kube.watch(SERVING, "Revision", "default", name=f"{name}-00001", timeout=seconds):
        if not found["status"].get("actualReplicas"):
            return
    raise AssertionError(f"{name} does not go to zero")


def replicas(notes: Path, platform: RunningPlatform) -> list[int]:
    """Processes of replicas that have answered, and run."""
    pids = {int(line.rsplit(" ", 1)[1]) for line in notes.read_text().splitlines()[-2000:] if line.count(" ") == 2}
    return [pid for pid in pids if Path(f"/proc/{pid}").exists() and pid != platform.process.pid]


async def disturb(
    platform: RunningPlatform, kube: Kube, folder: Path, notes: Path, kills: int, rollouts: int, draw: random.Random
) -> list[int]:
    """Rollouts and kills, one after the other, until all were; the pids that were killed."""
    killed: list[int] = []
    events = ["kill"] * kills + ["rollout"] * rollouts
    draw.shuffle(events)
    version = 1
    for event in events:
        await asyncio.sleep(draw.uniform(0.3, 1.5))
        if event == "rollout":
            version += 1
            await asyncio.to_thread(deploy, kube, folder, "steady", version, notes)
        else:
            there = replicas(notes, platform)
            if there:
                pid = draw.choice(there)
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
    return killed


async def run(
    given: argparse.Namespace, platform: RunningPlatform, folder: Path
) -> tuple[Seen, list[int], Path, float]:
    notes, draw = folder / "notes", random.Random(given.seed)
    notes.touch()
    seen, numbers = Seen(), iter(range(10**9))
    with Kube.from_kubeconfig(platform.kubeconfig) as kube:
        for name in ("steady", "waves"):
            await asyncio.to_thread(deploy, kube, folder, name, 1, notes)
        timeout = aiohttp.ClientTimeout(total=120)
        connector = aiohttp.TCPConnector(limit=0)
        begun = time.perf_counter()
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            steady, waves = (
                Load(f"{platform.functions}/default/{name}", seen, session, numbers, draw)
                for name in ("steady", "waves")
            )
            per_wave = max(10, given.requests // 10 // given.cycles)
            constant = given.requests - per_wave * given.cycles
            bursts = constant // 4

            async def wave() -> None:
                for _ in range(given.cycles):
                    await asyncio.to_thread(at_zero, kube, "waves")
                    await waves.many(per_wave, 32)

            async def burst() -> None:
                for _ in range(4):
                    await asyncio.sleep(draw.uniform(0.5, 3.0))
                    await steady.many(bursts // 4, 48)

            async def until_done() -> list[int]:
                return await disturb(platform, kube, folder, notes, given.kills, given.rollouts, draw)

            _, _, _, killed = await asyncio.gather(
                steady.many(constant - 4 * (bursts // 4), 8, pause=0.001), burst(), wave(), until_done()
            )
        return seen, killed, notes, time.perf_counter() - begun


def judged(seen: Seen, killed: list[int], notes: Path) -> list[str]:
    """What went wrong."""
    begun: dict[int, list[int]] = {}
    done: Counter[int] = Counter()
    for line in notes.read_text().splitlines():
        what, number, pid = line.split()
        if what == "begun":
            begun.setdefault(int(number), []).append(int(pid))
        else:
            done[int(number)] += 1
    faults = list(seen.wrong)
    for number in seen.excused:
        # One that was sent and never begun was in the socket of a replica that was killed; then somebody was killed.
        if not set(begun.get(number, killed)) & set(killed):
            faults.append(f"POST {number} was told 502, but its replica ({begun[number]}) was not killed")
    faults += [
        f"POST {number} was answered, and done {done[number]} times" for number in seen.done if done[number] != 1
    ]
    faults += [f"POST {number} was begun {len(pids)} times" for number, pids in begun.items() if len(pids) > 1]
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--cycles", type=int, default=5, help="times from zero to several and back")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--check", action="store_true", help="a quick self-check")
    given = parser.parse_args()
    if given.check:
        given.requests, given.cycles, given.kills, given.rollouts = 600, 1, 1, 1
    print(f"python {sys.version.split()[0]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, seed {given.seed}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with (
            running_platform(folder / "home") as platform,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            seen, killed, notes, seconds = runner.run(run(given, platform, folder))
            faults = judged(seen, killed, notes)
            log = platform.log.read_text()
    statuses = ", ".join(f"{status}: {count}" for status, count in sorted(seen.by_status.items()))
    print(f"{seen.answered} answers in {seconds:.1f} s ({seen.answered / seconds:.0f}/s): {statuses}")
    print(f"slowest answer {seen.slowest:.2f} s; replicas killed {len(killed)}; rollouts {given.rollouts}")
    print(f"told that their replica was lost: {len(seen.excused)} POSTs")
    for fault in faults[:20]:
        print(f"FAULT: {fault}")
    if faults:
        print(f"{len(faults)} faults; the end of the platform's log:\n{log[-3000:]}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
