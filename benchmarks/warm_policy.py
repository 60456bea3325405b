"""What the warm policy costs in money and cold starts, beside the policies that it replaces.

Traces of five kinds (from a folder with --traces, else from seeds); the first half teaches, the second is scored: idle
GPU-seconds at 0.0008, waiting seconds at 0.004. One setting for all traces. Prints the table, our distance to an oracle
that knows the future, the curve as the price of waiting goes from 0.0004 to 0.04, entries a second, and the time that
deciding takes for 10,000 functions with the bytes that each takes.

    python benchmarks/warm_policy.py                    # about two minutes
    python benchmarks/warm_policy.py --traces FOLDER --plots FOLDER
    python benchmarks/warm_policy.py --seeds 3          # other traces of the same kinds
    python benchmarks/warm_policy.py --check            # small traces; fails where ours is not the cheapest
"""

from __future__ import annotations

import argparse
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np

from relight.decide import keepalive
from relight.decide.hours import WEEK
from relight.decide.idletimes import BYTES, CLASSES, IdleTimes
from relight.decide.keepalive import Costs, Prices
from relight.warm import plotting
from relight.warm.functions import Function
from relight.warm.generating import KINDS, generate
from relight.warm.policies import policy
from relight.warm.simulating import Entries, Outcome
from relight.warm.traces import Trace, read

FIXED = ("fixed:0", "fixed:60", "fixed:90", "fixed:2m", "fixed:5m", "fixed:10m", "fixed:20m", "fixed:1h")
OTHERS = (*FIXED, "knative", "hybrid", "always-on")
WAITING = (0.0004, 0.0012, 0.004, 0.012, 0.04)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="small traces, no figures")
    parser.add_argument("--traces", type=Path, help="folder of NAME.npz and NAME.json")
    parser.add_argument("--plots", type=Path, help="folder for a PNG per trace")
    parser.add_argument("--seeds", type=int, default=1, help="traces of each kind, where they are generated")
    options = parser.parse_args()
    if options.check:
        traces = [generate(kind, functions=40, days=6, seed=1) for kind in KINDS]
    elif options.traces:
        traces = [read(path) for path in sorted(options.traces.glob("*.npz"))]
    else:
        traces = [generate(kind, seed=seed) for seed in range(options.seeds) for kind in KINDS]
    won = [compare(trace, options.plots, curves=not options.check) for trace in traces]
    if not options.check:
        decisions(10_000)
    print(f"\ncheapest of all but the oracle on {sum(won)} of {len(won)} traces, with one setting")
    return 0 if all(won) else 1


def compare(trace: Trace, plots: Path | None, *, curves: bool) -> bool:
    """All policies on one trace; whether ours is the cheapest."""
    entries, prices = Entries(trace), Prices()
    print(f"\n{trace.name}: {len(entries)} entries, {int(trace.calls.sum())} calls, {trace.size} functions")
    print("  policy        money  ours/it  idle GPU-s  waiting s  cold p50  cold p75  cold p99  of calls  M entries/s")
    found: dict[str, Outcome] = {}
    for name in ("relight", *OTHERS, "oracle"):
        began = time.perf_counter()
        outcome = found[name] = policy(name)(entries, prices)
        speed = len(entries) / (time.perf_counter() - began) / 1e6
        money = outcome.money(prices)
        ratio = found["relight"].money(prices) / money
        shares = "  ".join(f"{outcome.percentile(percent):8.3f}" for percent in (50, 75, 99))
        print(
            f"  {name:10s} {money:8.0f} {ratio:8.2f} {outcome.gpu_seconds:11.0f} {outcome.waiting.sum():10.0f}  "
            f"{shares}  {outcome.cold_share:8.3f}  {speed:11.2f}"
        )
    if curves:
        curve(entries, found, plots)
    others = {name: found[name].money(prices) for name in OTHERS}
    best = min(others, key=others.__getitem__)
    ours = found["relight"].money(prices)
    print(
        f"  ours {ours:.0f} against {others[best]:.0f} ({best}): {others[best] / ours:.2f} times cheaper; "
        f"{ours / found['oracle'].money(prices):.1f} times what the oracle pays"
    )
    return ours < others[best]


def curve(entries: Entries, found: dict[str, Outcome], plots: Path | None) -> None:
    """p75 of cold shares against idle time, as waiting becomes dearer; and what it is where others idle as much."""
    # Beyond the prices that are asked for, so that there is something to compare at what the others burn.
    waiting = (*WAITING, 0.16)
    ours = [policy("relight")(entries, Prices(waiting=price)) for price in waiting]
    line = [(one.gpu_seconds, one.percentile(75)) for one in ours]
    print("  curve, idle GPU-s : p75   " + "  ".join(f"{idle:.0f} : {share:.3f}" for idle, share in line))
    idle, shares = np.array(sorted(line)).T
    for name in ("fixed:5m", "fixed:10m", "fixed:20m", "knative", "hybrid"):
        other = found[name]
        at = float(np.interp(other.gpu_seconds, idle, shares))
        inside = idle[0] <= other.gpu_seconds <= idle[-1]
        fewer = f"{other.percentile(75) / max(at, 1e-9):.1f} times fewer" if at < other.percentile(75) else "not fewer"
        print(
            f"  at the idle time of {name}: p75 {at:.3f} against {other.percentile(75):.3f}, "
            f"{fewer if inside else 'outside of the curve'}"
        )
    if plots:
        plots.mkdir(parents=True, exist_ok=True)
        points = {name: (found[name].gpu_seconds, found[name].percentile(75)) for name in ("knative", "hybrid", *FIXED)}
        path = plots / f"warm-{entries.trace.name}.png"
        plotting.draw(path, f"{entries.trace.name}: cold starts against idle time", {"relight": line[:5]}, points)
        print(f"  {path}")


def decisions(functions: int) -> None:
    """How long it takes to decide for many functions at once, and what each of them takes."""
    draw = np.random.default_rng(1)
    times = IdleTimes(functions)
    samples = functions * 40
    rows = draw.integers(functions, size=samples)
    seconds = 10 ** draw.uniform(0, 4.5, samples)
    hour = draw.integers(WEEK, size=samples)
    times.learn(rows, draw.integers(CLASSES, size=samples), seconds, np.ones(samples), np.ones(samples, bool), hour)
    costs = Costs(10 ** draw.uniform(-0.5, 2, functions), draw.choice([0.125, 0.25, 0.5, 1.0], functions))
    raw = []
    for _ in range(3):
        began = time.perf_counter()
        rows = np.arange(functions)
        keepalive.decide(times.known(rows, times.pace(rows)), costs, draw.integers(WEEK, size=functions))
        raw.append(time.perf_counter() - began)
    held = sum(one.nbytes for one in (times.counts, times.recent, times.began, times.week)) / functions
    tracemalloc.start()
    present = {("default", f"function-{row}"): Function(row) for row in range(functions)}
    state = tracemalloc.get_traced_memory()[0] / len(present)
    tracemalloc.stop()
    took = " ".join(f"{one:.3f}" for one in raw)
    print(
        f"\ndecisions for {functions} functions: {took} s; {held:.0f} bytes each of what was learned ({BYTES} by the "
        f"layout), and {state:.0f} of its present state and name"
    )


if __name__ == "__main__":
    sys.exit(main())
