"""Two thousand functions on one machine, all at zero: what they cost, and whether one of them is noticed among them.

    python benchmarks/scale.py                   # 2,000 Services, beside a platform with few; some minutes
    python benchmarks/scale.py --services 200
    python benchmarks/scale.py --check           # 60 Services, 10 woken at once

Measured on a platform that is started again with all of them in its store: seconds until `relight up` is ready and
until any function can be called; memory of the platform's process; a list of all Services through the API; how long a
call at zero takes. The peer is a platform with no more Services than are called, in the same run; the two take turns,
and each function is called once, at zero. Then many Services are woken at the same moment: each request is answered
once, by one replica.

Wrong answers end it with 1; figures that miss their goal are printed as such.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
from loading import free_port

from relight.net.kube import Kube
from relight.testing.platform import RunningPlatform, running_platform

SERVING = "serving.knative.dev/v1"
STEP = """
import os

from relight.sdk import Step


class Noting(Step):
    def run(self, data, event):
        with open(os.environ["RUNS"], "a") as runs:
            runs.write(f"{os.environ['K_SERVICE']} {data['number']} {os.getpid()}\\n")
        return {"name": os.environ["K_SERVICE"], "number": data["number"]}


def new():
    return Noting()
"""
GOALS = {"up": 5.0, "memory": 150.0, "list": 1.0}
"""Seconds, megabytes, seconds."""

PORTS: dict[str, int] = {}
"""Where the functions of a platform are called, by the name of its folder."""

http = urllib3.PoolManager(maxsize=64, retries=False, timeout=urllib3.Timeout(60.0))


@dataclass
class Figures:
    """What one platform showed."""

    up: float = 0.0
    callable: float = 0.0
    """From the start until a function that was asked for at once has answered."""
    memory: float = 0.0
    listed: float = 0.0


def make_function(folder: Path) -> Path:
    path = folder / "noting"
    (path / "function").mkdir(parents=True)
    (path / "func.yaml").write_text(
        "specVersion: 0.36.0\nname: noting\nruntime: python\ninvoke: http\ncreated: 2026-01-01T00:00:00Z\n"
    )
    (path / "pyproject.toml").write_text('[project]\nname = "function"\nversion = "0.1.0"\n')
    (path / "function/__init__.py").write_text("from .func import new\n")
    (path / "function/func.py").write_text(STEP)
    return path


def service(name: str, source: Path, runs: Path) -> dict[str, Any]:
    annotations = {
        "relight.dev/source": str(source),
        "autoscaling.knative.dev/initial-scale": "0",
        "autoscaling.knative.dev/window": "6s",
    }
    container = {"image": "relight", "env": [{"name": "RUNS", "value": str(runs)}]}
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}
    return {"apiVersion": SERVING, "kind": "Service", "metadata": {"name": name}, "spec": {"template": template}}


def names_of(count: int) -> list[str]:
    return [f"f{number:05d}" for number in range(count)]


def fill(home: Path, source: Path, runs: Path, count: int) -> float:
    """A platform's store with ``count`` Services that are ready, and at zero; seconds that it took."""
    begun = time.perf_counter()
    PORTS[home.name] = free_port()
    arguments = ("--functions-port", str(PORTS[home.name]))
    with running_platform(home, arguments=arguments) as platform, Kube.from_kubeconfig(platform.kubeconfig) as kube:
        zero = {"data": {"allow-zero-initial-scale": "true"}}
        kube.patch("v1", "ConfigMap", "config-autoscaler", zero, "knative-serving")
        for name in names_of(count):
            kube.create(service(name, source, runs))
        waiting = set(names_of(count))
        for _, found in kube.watch(SERVING, "Service", "default", timeout=600):
            rows = (found.get("status") or {}).get("conditions") or ()
            if any(row["type"] == "Ready" and row["status"] == "True" for row in rows):
                waiting.discard(found["metadata"]["name"])
            if not waiting:
                break
        assert not waiting, f"{len(waiting)} of {count} Services are not ready"
    return time.perf_counter() - begun


def memory_of(pid: int) -> float:
    """Megabytes of a process's own: what is private to it or its share of what is not."""
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("Pss:")) * 1024 / 1e6


def call(platform: RunningPlatform, name: str, number: int) -> float:
    """Seconds of a call whose answer is right."""
    begun = time.perf_counter()
    answer = http.request("POST", f"{platform.functions}/default/{name}", json={"number": number})
    seconds = time.perf_counter() - begun
    assert answer.status == 200, f"{name}: {answer.status} {answer.data!r}"
    assert answer.json() == {"name": name, "number": number}, answer.data
    return seconds


@contextlib.contextmanager
def measured(home: Path, count: int, figures: Figures, numbers: Iterator[int]) -> Iterator[RunningPlatform]:
    begun = time.perf_counter()
    # A port that is free but stays: where functions are called stands in every object, and need not be written anew.
    with running_platform(home, arguments=("--functions-port", str(PORTS[home.name]))) as platform:
        figures.up = time.perf_counter() - begun
        call(platform, names_of(count)[-1], next(numbers))
        figures.callable = time.perf_counter() - begun
        with Kube.from_kubeconfig(platform.kubeconfig) as kube:
            kube.list(SERVING, "Service", "default", labels="none=such")  # TLS and its like are not what is measured
            begun = time.perf_counter()
            found = kube.list(SERVING, "Service", "default")["items"]
            figures.listed = time.perf_counter() - begun
        assert len(found) == count, f"{len(found)} of {count} are listed"
        settle(platform)
        figures.memory = memory_of(platform.process.pid)
        yield platform


def settle(platform: RunningPlatform, quiet: float = 0.2, most: float = 60.0) -> None:
    """Until the platform's process has used next to no CPU for a while: all that follows from its objects is done."""
    tick, deadline = os.sysconf("SC_CLK_TCK"), time.monotonic() + most

    def used() -> int:
        fields = Path(f"/proc/{platform.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = used()
    while time.monotonic() < deadline:
        time.sleep(quiet)
        now = used()
        if now - before <= 0.1 * quiet * tick:
            return
        before = now


def together(platform: RunningPlatform, names: list[str], numbers: Iterator[int], runs: Path) -> float:
    """Wake many at the same moment; seconds until the last has answered. Each is run once."""
    asked = {name: next(numbers) for name in names}
    begun = time.perf_counter()
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(lambda name: call(platform, name, asked[name]), names))
    seconds = time.perf_counter() - begun
    rows = [line.split() for line in runs.read_text().splitlines()]
    for name, number in asked.items():
        mine = [row for row in rows if row[:2] == [name, str(number)]]
        assert len(mine) == 1, f"{name} ran {len(mine)} times"
    starts = Counter(row[0] for row in rows if row[0] in asked)
    assert all(count == 1 for count in starts.values()), starts
    return seconds


def shown(name: str, value: float, unit: str, goal: float | None) -> str:
    verdict = "" if goal is None else f"  (goal: at most {goal:g} {unit}{'' if value <= goal else ': MISSED'})"
    return f"{name:<44}{value:8.2f} {unit}{verdict}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--services", type=int, default=2000)
    parser.add_argument("--wakes", type=int, default=15, help="calls at zero on each platform")
    parser.add_argument("--at-once", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--check", action="store_true", help="a quick self-check")
    given = parser.parse_args()
    if given.check:
        given.services, given.wakes, given.at_once = 60, 3, 10
    draw = random.Random(given.seed)
    print(f"python {sys.version.split()[0]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, seed {given.seed}")
    numbers = iter(range(10**9))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        source, runs = make_function(folder), folder / "runs"
        runs.touch()
        took = fill(folder / "many", source, runs, given.services)
        few = given.wakes + 1
        fill(folder / "few", source, folder / "runs-of-few", few)
        print(
            f"{given.services} Services created and ready in {took:.1f} s ({1000 * took / given.services:.1f} ms each)"
        )
        many, peer = Figures(), Figures()
        names = names_of(given.services)
        woken: dict[str, list[float]] = {"many": [], "few": []}
        with (
            measured(folder / "few", few, peer, numbers) as beside,
            measured(folder / "many", given.services, many, numbers) as platform,
        ):
            picked = draw.sample(names[:-1], min(given.wakes, len(names) - 1))
            for at, name in enumerate(picked):
                woken["few"].append(call(beside, names[at], next(numbers)))
                woken["many"].append(call(platform, name, next(numbers)))
            rest = [name for name in names[:-1] if name not in picked]
            group = draw.sample(rest, given.at_once)
            seconds = together(platform, group, numbers, runs)
        for label, value, base, unit, goal in (
            ("relight up is ready", many.up, peer.up, "s", GOALS["up"]),
            ("the last function has answered after", many.callable, peer.callable, "s", None),
            ("memory of the platform's process", many.memory, peer.memory, "MB", GOALS["memory"]),
            ("list of all Services", many.listed, peer.listed, "s", GOALS["list"]),
        ):
            print(
                f"{shown(label, value, unit, goal)}   with {few} Services: {base:.2f} {unit}, ratio {value / base:.2f}"
            )
        medians = {key: statistics.median(values) for key, values in woken.items()}
        for key, values in woken.items():
            print(f"wakes, {key:<5} (ms): {' '.join(f'{1000 * value:.0f}' for value in values)}")
        ratio = medians["many"] / medians["few"]
        print(
            f"a call at zero: median {1000 * medians['many']:.0f} ms among {given.services}, "
            f"{1000 * medians['few']:.0f} ms among {few}, ratio {ratio:.2f}"
        )
        print(f"{len(group)} woken at once: all answered, each once, after {seconds:.2f} s")
    print(json.dumps({"many": vars(many), "few": vars(peer), "ratio": ratio, "together": seconds}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
