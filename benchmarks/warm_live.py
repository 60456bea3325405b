"""The warm policy on a running platform, beside what the simulator says would happen.

A platform of its own with the policy on, and functions that are called as hours are at sixty times their pace, a minute
in a second: timers, calls without a pattern, bursts, a steady stream, one that changes its pattern. What is counted is
how many calls found no replica. The simulator gets the same calls at the moments at which they were sent, the cold
starts that were measured, and what is known of the platform: Knative's window, how often policy and autoscaler look.

    python benchmarks/warm_live.py             # about four minutes
    python benchmarks/warm_live.py --seconds 60 --seed 2
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import threading
import time
import urllib.request
from datetime import datetime
from pathlib import Path

import numpy as np

from relight.decide.keepalive import Prices
from relight.net.kube import Kube
from relight.testing.platform import RunningPlatform, running_platform
from relight.warm.learning import learned
from relight.warm.lines import Lines
from relight.warm.policies import Platform
from relight.warm.simulating import Entries
from relight.warm.traces import Trace

WINDOW = 6.0
"""Seconds: the shortest stable window that Knative allows."""
STARTING = 1.5
"""Seconds that the functions sleep while they load, so that a cold start is worth something."""
SLOW = STARTING / 2
"""A call that waits longer counts as cold, on both sides: the rest of a start that is all but done does not."""
SHARE = 0.5
"""Of a GPU: so large that few idle times are worth being kept through, and many calls are cold."""
CHANGED = re.compile(r"warm\.changed revision=\w+/(?P<name>.+)-\d{5} (?P<what>.*)")
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

    def timer(period: float, begin: float = 1.0) -> np.ndarray:
        at = np.arange(begin, seconds, period)
        return at + draw.normal(0.0, 0.15, len(at))

    def random(mean: float) -> np.ndarray:
        return 1.0 + np.cumsum(draw.exponential(mean, int(4 * seconds / mean) + 9))

    def bursts(every: float) -> np.ndarray:
        begins = np.arange(draw.uniform(2.0, every), seconds, every)
        return np.concatenate([begin + np.sort(draw.uniform(0.0, 8.0, 6)) for begin in begins])

    change = seconds / 2
    changing = np.concatenate((timer(12.0)[timer(12.0) < change], change + random(15.0)))
    made = {
        "timer-13": timer(13.0),
        "timer-17": timer(17.0),
        "timer-23": timer(23.0),
        **{f"random-{mean}": random(mean) for mean in (12, 13, 14, 15, 16, 18, 20, 22, 26, 30)},
        "burst-31": bursts(31.0),
        "burst-43": bursts(43.0),
        "steady": timer(3.0),
        "changing": changing,
    }
    return {name: sorted(float(at) for at in moments if 0.0 < at < seconds) for name, moments in made.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    plan = schedules(options.seconds, np.random.default_rng(options.seed))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        environ = {"RELIGHT_WARM_CPU_SHARE": str(SHARE)}
        with running_platform(folder / "home", environ=environ, arguments=("--warm", "on")) as platform:
            for name in plan:
                deploy(platform, folder / name)
            until_zero(platform.kubeconfig)
            begin = time.time()
            sent = call(platform.functions, plan)
            log = platform.log.read_text(errors="replace")
    live, predicted = report(sent, changes(log, begin))
    off = abs(predicted - live) / max(live, 1)
    print(f"\ncold calls: {live} happened, {predicted} predicted: {100 * off:.1f} % off")
    return 0 if off <= 0.10 else 1


def deploy(platform: RunningPlatform, folder: Path) -> None:
    platform.relight("new", "step", folder.name, str(folder))
    (folder / "function" / "func.py").write_text(STEP.format(starting=STARTING))
    patch = {"spec": {"template": {"metadata": {"annotations": {"autoscaling.knative.dev/window": f"{WINDOW:g}s"}}}}}
    (folder / "relight.yaml").write_text(json.dumps(patch))
    platform.relight("deploy", str(folder))


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


def changes(log: str, begin: float) -> dict[str, list[tuple[float, str]]]:
    """What the policy changed of each function, and when, by the platform's log."""
    found: dict[str, list[tuple[float, str]]] = {}
    for line in log.splitlines():
        said = json.loads(line) if line.startswith("{") else {}
        one = CHANGED.match(said.get("message", ""))
        if one:
            moment = datetime.fromisoformat(said["time"]).timestamp() - begin
            found.setdefault(one["name"], []).append((moment, one["what"]))
    return found


def report(sent: dict[str, list[tuple[float, float]]], changed: dict[str, list[tuple[float, str]]]) -> tuple[int, int]:
    """Prints both sides, by function, and the calls that they do not agree on; answers their sums."""
    took = [np.array([seconds for _, seconds in calls]) for calls in sent.values()]
    cold = np.array([np.median(one[one > SLOW]) if (one > SLOW).any() else STARTING for one in took])
    rows = np.array([(at, moment) for at, calls in enumerate(sent.values()) for moment, _ in calls])
    # The moments are those of the calls, to the millisecond: parts of the simulator's minutes.
    trace = Trace(
        "live",
        tuple(sent),
        rows[:, 0].astype(np.int64),
        rows[:, 1] / 60,
        np.ones(len(rows), np.int64),
        cold,
        np.full(len(sent), 0.01),
        np.full(len(sent), SHARE),
        int(rows[:, 1].max() / 60) + 1,
        0,
    )
    entries = Entries(trace)
    plan = Platform(WINDOW).carried_out(learned(entries, Prices(), 1 / 60, prompt=True))
    lines = Lines.of(entries, plan)
    came, _ = lines.settled()
    waits = lines.bill(np.arange(len(entries)), came, 0.0).waiting
    happened, predicted = np.concatenate(took) > SLOW, waits > SLOW
    print(f"{'function':10s} calls  cold  predicted  start s")
    for at, name in enumerate(sent):
        here = trace.function == at
        print(f"{name:10s} {here.sum():5d} {happened[here].sum():5d} {predicted[here].sum():10d} {cold[at]:8.2f}")
    print(f"\ncalls that they do not agree on: {(happened != predicted).sum()} of {len(rows)}")
    for row in np.flatnonzero(happened != predicted):
        print(
            f"{trace.names[trace.function[row]]:10s} at {rows[row, 1]:6.1f} s: waited "
            f"{np.concatenate(took)[row]:5.2f} s, predicted {waits[row]:5.2f} s; idle {entries.idle[row]:5.1f} s, "
            f"up to {lines.held[0][row]:.1f} s and from {lines.held[1][row]:.1f} to {lines.held[2][row]:.1f} s"
        )
        for moment, what in changed.get(trace.names[trace.function[row]], ()):
            if rows[row, 1] - entries.idle[row] - 3.0 < moment < rows[row, 1] + 1.0:
                print(f"    at {moment:6.1f} s the policy: {what}")
    return int(happened.sum()), int(predicted.sum())


if __name__ == "__main__":
    sys.exit(main())
