"""The warm policy on a running platform, beside what the simulator says would happen.

A platform of its own with the policy on, functions that are called as a trace of hours is, a minute in a second:
timers, a burst, a steady stream, rare calls. What is counted is how many calls found no replica. The simulator gets the
same calls at the moments at which they were sent, the cold starts that were measured, and the platform's own window.

    python benchmarks/warm_live.py             # about four minutes
    python benchmarks/warm_live.py --seconds 60
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np

from relight.decide.keepalive import Prices
from relight.net.kube import Kube
from relight.testing.platform import running_platform
from relight.warm import policies
from relight.warm.simulating import Entries, simulate
from relight.warm.traces import Trace

WINDOW = 6.0
"""Seconds: the shortest stable window that Knative allows."""
HELD = WINDOW + 2.0
"""From the last call to the end of a replica: the window, and the ticks until it is seen and acted on."""
STARTING = 1.5
"""Seconds that the functions sleep while they load, so that a cold start is worth something."""
STEP = """
import time
from relight.sdk import Step

class Sleeper(Step):
    def load(self):
        time.sleep({starting})

    def run(self, data, event):
        return data

def new():
    return Sleeper()
"""


def schedules(seconds: float, draw: np.random.Generator) -> dict[str, list[float]]:
    """Moments of the calls of each function, from the begin."""
    bursts = [at + offset for at in np.arange(5.0, seconds, 45.0) for offset in np.sort(draw.uniform(0, 12, 8))]
    rare = np.cumsum(draw.exponential(22.0, 200))
    return {
        "timer-25": list(np.arange(2.0, seconds, 25.0)),
        "timer-15": list(np.arange(3.0, seconds, 15.0)),
        "burst": [float(at) for at in bursts],
        "steady": list(np.arange(1.0, seconds, 4.0)),
        "rare": [float(at) for at in rare],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=220.0)
    options = parser.parse_args()
    draw = np.random.default_rng(1)
    plan = {
        name: [at for at in moments if at < options.seconds]
        for name, moments in schedules(options.seconds, draw).items()
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        environ = {"RELIGHT_WARM_CPU_SHARE": "0.25"}
        with running_platform(folder / "home", environ=environ, arguments=("--warm", "on")) as platform:
            for name in plan:
                platform.relight("new", "step", name, str(folder / name))
                (folder / name / "function" / "func.py").write_text(STEP.format(starting=STARTING))
                patch = {"spec": {"template": {"metadata": {"annotations": {"autoscaling.knative.dev/window": "6s"}}}}}
                (folder / name / "relight.yaml").write_text(json.dumps(patch))
                platform.relight("deploy", str(folder / name))
            until_zero(platform.kubeconfig)
            sent = call(platform.functions, plan)
            with Kube.from_kubeconfig(platform.kubeconfig) as kube:
                events = kube.list("v1", "Event", "default")["items"]
    starts = [one for one in events if one["reason"] == "ColdStart"]
    live, predicted = report(sent, starts)
    off = abs(predicted - live) / max(live, 1)
    print(f"\ncold calls: {live} happened, {predicted} predicted: {100 * off:.0f} % off")
    return 0 if off <= 0.10 else 1


def until_zero(kubeconfig: Path) -> None:
    """Wait until no replica is left from the deployment: what is measured begins there."""
    with Kube.from_kubeconfig(kubeconfig) as kube:
        for _ in range(180):
            if not kube.list("v1", "Pod", "default")["items"]:
                return
            time.sleep(1)
    raise SystemExit("replicas are up three minutes after the deployment")


def call(base: str, plan: dict[str, list[float]]) -> dict[str, list[tuple[float, float]]]:
    """(moment, seconds to the answer) of each call."""
    begin = time.monotonic()
    sent: dict[str, list[tuple[float, float]]] = {name: [] for name in plan}
    broken: list[BaseException] = []

    def caller(name: str) -> None:
        for at in plan[name]:
            time.sleep(max(0.0, begin + at - time.monotonic()))
            now = time.monotonic()
            request = urllib.request.Request(f"{base}/default/{name}", b"{}", {"content-type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=60) as response:
                    assert response.read() == b"{}"
            except (OSError, AssertionError) as error:
                broken.append(error)
                return
            sent[name].append((now - begin, time.monotonic() - now))

    threads = [threading.Thread(target=caller, args=(name,)) for name in plan]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if broken:
        raise SystemExit(f"a call was not answered: {broken[0]!r}")
    return sent


def report(sent: dict[str, list[tuple[float, float]]], starts: list[dict[str, object]]) -> tuple[int, int]:
    """Prints both sides, by function; answers their sums."""
    names = tuple(sent)
    slow = STARTING / 2
    cold = np.array([np.median([took for _, took in calls if took > slow] or [STARTING]) for calls in sent.values()])
    rows = [(at, moment) for at, calls in enumerate(sent.values()) for moment, _ in calls]
    # The moments are those of the calls, to the millisecond: parts of the simulator's minutes.
    trace = Trace(
        "live",
        names,
        np.array([at for at, _ in rows]),
        np.array([moment / 60 for _, moment in rows]),
        np.ones(len(rows), np.int64),
        cold,
        np.full(len(names), 0.01),
        np.full(len(names), 0.25),
        int(max(moment for _, moment in rows) / 60) + 1,
        0,
    )
    plan = policies.ours(Entries(trace), Prices(), epoch=1 / 60, floor=HELD)
    outcome = simulate(Entries(trace), plan)
    print(f"{'function':10s} calls  cold  predicted  start s")
    live = 0
    for at, (name, calls) in enumerate(sent.items()):
        here = sum(took > slow for _, took in calls)
        live += here
        print(f"{name:10s} {len(calls):5d} {here:5d} {outcome.cold[at]:10.0f} {cold[at]:8.2f}")
    print(f"{len(starts)} cold starts are Events of revisions, pre-warms among them")
    return live, round(float(outcome.cold.sum()))


if __name__ == "__main__":
    sys.exit(main())
