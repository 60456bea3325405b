"""The simulator against one that walks through every call, and traces in and out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from relight.base.errors import BadInput
from relight.decide import keepalive
from relight.decide.hours import HOUR, WEEK, watched
from relight.decide.idletimes import SPAN, IdleTimes, pace_of
from relight.decide.keepalive import Costs, Prices
from relight.warm import policies, traces
from relight.warm.generating import KINDS, generate
from relight.warm.lines import Plan
from relight.warm.policies import policy
from relight.warm.simulating import Entries, Outcome, simulate
from relight.warm.traces import Trace

PRICES = Prices()


def walked(trace: Trace, keep: np.ndarray, ready: np.ndarray, until: np.ndarray) -> tuple[float, float, float]:
    """(cold calls, waiting, idle) of the scored part: call by call, second by second in mind."""
    colds = waiting = idle = 0.0
    scored = trace.scored_from * 60.0
    for function in range(trace.size):
        cold, run = trace.cold[function], trace.run[function]
        free, up_to_date, plan = None, -np.inf, (0.0, np.inf, 0.0)
        for row in np.flatnonzero(trace.function == function):
            for place in range(trace.calls[row]):
                now = trace.minute[row] * 60.0 + place * 60.0 / trace.calls[row]
                counts = now >= scored
                if now < up_to_date - 1e-8:  # it starts, or was started; a tie is none of both
                    colds += counts
                    waiting += counts * (up_to_date - now)
                    free = up_to_date + run
                    plan = (keep[row], ready[row], until[row])
                    continue
                gap = np.inf if free is None else now - free
                if gap > plan[0] and not plan[1] <= gap <= plan[2]:
                    early = gap < plan[1] and gap >= max(plan[1] - cold, plan[0])
                    up_to_date = free + plan[1] if early else now + cold
                    colds += counts
                    waiting += counts * (up_to_date - now)
                if counts and free is not None and gap > 0:
                    idle += _up(gap, plan, cold) - _up(min(max(scored - free, 0.0), gap), plan, cold)
                idle += counts * max(0.0, up_to_date - now)
                free = max(free or 0.0, max(now, up_to_date) + run)
                plan = (keep[row], ready[row], until[row])
        if free is not None and free < trace.minutes * 60.0:
            gap = trace.minutes * 60.0 - free
            idle += _up(gap, plan, cold) - _up(min(max(scored - free, 0.0), gap), plan, cold)
    return colds, waiting, idle


def _up(gap: float, plan: tuple[float, float, float], cold: float) -> float:
    keep, ready, until = plan
    return min(gap, keep) + max(0.0, min(gap, until) - max(ready - cold, keep))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["none", "short", "knative", "drawn"])
def test_it_agrees_with_a_walk_call_by_call(kind: str, how: str) -> None:
    trace = generate(kind, functions=6, days=2, seed=3)
    entries, draw = Entries(trace), np.random.default_rng(4)
    size = len(entries)
    plan = {
        "none": Plan(0.0),
        "short": Plan(3.0),
        "knative": Plan(65.0),
        "drawn": Plan(
            draw.choice([0.0, 20.0, 200.0], size),
            np.where(draw.random(size) < 0.5, 300.0, np.inf),
            np.full(size, 400.0),
        ),
    }[how]
    parts = [np.broadcast_to(part, size) for part in (plan.keep, plan.ready, plan.until)]
    want = walked(trace, *parts)
    got = simulate(entries, plan)
    assert (got.cold.sum(), got.waiting.sum(), got.idle.sum()) == pytest.approx(want, rel=1e-3, abs=2.0)


@pytest.mark.parametrize("seed", range(8))
def test_it_agrees_with_a_walk_on_traces_without_a_pattern(seed: int) -> None:
    draw = np.random.default_rng(seed)
    trace = random_trace(draw)
    entries = Entries(trace)
    size = len(entries)
    ready = np.where(draw.random(size) < 0.4, draw.choice([0.25, 1.0, 5.0, 20.0, 61.0, 300.0], size), np.inf)
    keep = draw.choice([0.0, 0.5, 1.0, 7.0, 59.0, np.inf] if seed % 2 else [0.0, 0.25], size)
    keep = np.where(np.isfinite(ready), np.minimum(keep, ready / 2), keep)
    until = np.where(np.isfinite(ready), ready + draw.choice([0.0, 1.0, 30.0], size), np.inf)
    got = simulate(entries, Plan(keep, ready, until))
    want = walked(trace, keep, ready, until)
    assert (got.cold.sum(), got.waiting.sum(), got.idle.sum()) == pytest.approx(want, rel=1e-9, abs=1e-6)


def random_trace(draw: np.random.Generator) -> Trace:
    """Functions that are called once in an hour or a hundred times a minute; costs whose sums are exact, for ties."""
    minutes, size = 400, 8
    counts = draw.poisson(10 ** draw.uniform(-2, 2, (size, 1)), (size, minutes))
    counts[draw.random((size, minutes)) < 0.2] = 0
    counts = np.where(counts > 4, counts - counts % 4, counts)
    function, minute = np.nonzero(counts)
    return Trace(
        "random", tuple("abcdefgh"), function, minute, np.minimum(counts, 240)[function, minute],
        draw.choice([0.25, 0.5, 2.0, 15.0, 90.0], size), draw.choice([0.0, 0.125, 0.5, 3.0], size),
        draw.choice([0.125, 1.0], size), minutes, minutes // 3,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["mixed", "calendar", "random"])
@pytest.mark.parametrize("epoch", [60, 7])
def test_what_is_laid_out_beforehand_is_what_one_learns_hour_by_hour(kind: str, epoch: float) -> None:
    days = 9 if kind == "calendar" else 3
    trace = (
        random_trace(np.random.default_rng(5)) if kind == "random" else generate(kind, functions=5, days=days, seed=6)
    )
    trace = replace(trace, run=trace.run + 0.001)  # so that no idle time is at the edge between two paces
    entries = Entries(trace)
    plan = policies.ours(entries, PRICES, epoch=epoch)
    for got, want in zip((plan.keep, plan.ready, plan.until), taught(entries, epoch), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9)


def taught(entries: Entries, epoch: float) -> list[np.ndarray]:
    """The plans after each entry, learned and decided epoch by epoch as a running policy does."""
    trace = entries.trace
    costs, times = Costs(trace.cold, trace.share, PRICES), IdleTimes(trace.size)
    known, calls, over = np.zeros(trace.size, bool), np.zeros(trace.size), 0
    prior = keepalive.prior(costs)
    found = [np.array(part[trace.function]) for part in (prior.keep, prior.ready, prior.until)]
    last: list[list[float]] = [[] for _ in trace.names]
    for moment in np.unique(trace.minute // epoch):
        rows = np.flatnonzero(trace.minute // epoch == moment)
        hour = int(trace.minute[rows].min() // 60)
        for at in range(over, hour):
            watched(times.week, at % WEEK, calls)
            calls[:] = 0
        over = hour
        np.add.at(calls, trace.function[rows], 1)
        samples, wanted = [], []
        for row in rows.tolist():
            function = trace.function[row]
            if entries.idle[row] > 0:
                began = int(entries.end[row - 1] // HOUR) % WEEK
                samples.append((function, pace_of_last(last[function]), entries.idle[row], 1.0, True, began))
            if not entries.first[row]:
                last[function].append(max(entries.idle[row], 0.0))
            pace = pace_of_last(last[function])
            if known[function]:
                wanted.append((row, function, pace))
            if entries.inner[row] > 0:
                end = int(entries.end[row] // HOUR) % WEEK
                samples.append((function, pace, entries.inner[row], entries.calls[row] - 1.0, False, end))
        if wanted:
            at, some, paces = (np.array(column) for column in zip(*wanted, strict=True))
            made = keepalive.decide(times.known(some, paces), costs.of(some), np.full(len(some), hour % WEEK))
            for part, values in zip(found, (made.keep, made.ready, made.until), strict=True):
                part[at] = values
        columns = [np.array(column) for column in zip(*samples, strict=True)] or [np.zeros(0, np.int64)] * 6
        columns[4] = columns[4].astype(bool)
        known[times.learn(*columns)] = True
    return found


def pace_of_last(idle: list[float]) -> int:
    return int(pace_of(np.array([np.mean(idle[-SPAN:]) if idle else np.nan]))[0])


def costs_of(trace: Trace) -> dict[str, float]:
    entries = Entries(trace)
    names = ("relight", "knative", "fixed:0", "fixed:30", "fixed:2m", "fixed:10m", "hybrid", "always-on", "oracle")
    return {name: policy(name)(entries, PRICES).money(PRICES) for name in names}


@pytest.mark.parametrize("kind", KINDS)
def test_ours_is_the_cheapest_of_those_that_do_not_know_the_future(kind: str) -> None:
    found = costs_of(generate(kind, functions=40, days=6, seed=7))
    assert sorted(found, key=found.__getitem__)[:2] == ["oracle", "relight"]


def test_a_policy_sees_only_what_came_before() -> None:
    whole = generate("mixed", functions=20, days=4, seed=5)
    early = whole.minute < 2 * 1440
    part = Trace(
        "part", whole.names, whole.function[early], whole.minute[early], whole.calls[early],
        whole.cold, whole.run, whole.share, 2 * 1440, 1440,
    )  # fmt: skip
    for make in (lambda entries: policies.ours(entries, PRICES), policies.published):
        full, half = make(Entries(whole)), make(Entries(part))
        for one, other in ((full.keep, half.keep), (full.ready, half.ready), (full.until, half.until)):
            np.testing.assert_array_equal(np.asarray(one)[early], other)


def test_always_on_never_waits_but_for_the_first() -> None:
    trace = generate("diurnal", functions=10, days=4, seed=1)
    outcome = policy("always-on")(Entries(trace), PRICES)
    assert outcome.cold.sum() <= trace.size
    assert outcome.idle.max() <= 2 * 86400.0 + 1


def test_names_of_policies() -> None:
    for name in ("fixed:10m", "fixed:600"):
        trace = generate("timer", functions=5, days=2)
        assert policy(name)(Entries(trace), PRICES).money(PRICES) > 0
    with pytest.raises(BadInput, match="there is no policy 'best'"):
        policy("best")
    with pytest.raises(BadInput, match="fixed:x"):
        policy("fixed:x")


def test_the_same_seed_makes_the_same_trace() -> None:
    one, other = (generate("mixed", functions=10, days=2, seed=9) for _ in range(2))
    assert one.calls.tolist() == other.calls.tolist()
    assert generate("mixed", functions=10, days=2, seed=8).calls.tolist() != one.calls.tolist()
    with pytest.raises(BadInput, match="no traces of kind"):
        generate("rainy")


def test_our_csv_goes_round(tmp_path: Path) -> None:
    trace = generate("burst", functions=12, days=2, seed=2)
    traces.write(trace, tmp_path / "t.csv")
    found = traces.read(tmp_path / "t.csv")
    assert money(found) == pytest.approx(money(trace))
    assert (found.minutes, found.scored_from) == (trace.minutes, trace.scored_from)
    (tmp_path / "t.json").unlink()
    assert traces.read(tmp_path / "t.csv").cold.tolist() == [traces.COLD] * found_size(tmp_path)


def found_size(folder: Path) -> int:
    return len({line.split(",")[0] for line in (folder / "t.csv").read_text().splitlines()[1:]})


def money(trace: Trace) -> float:
    return policy("knative")(Entries(trace), PRICES).money(PRICES)


def test_the_azure_functions_trace_of_2019(tmp_path: Path) -> None:
    head = ["HashOwner", "HashApp", "HashFunction", "Trigger", *map(str, range(1, 1441))]
    for day in ("01", "02"):
        row = ["o", "a", "f", "timer", *["0"] * 1440]
        row[4 + 30] = "2"
        path = tmp_path / f"invocations_per_function_md.anon.d{day}.csv"
        path.write_text(",".join(head) + "\n" + ",".join(row) + "\n")
    durations = "HashOwner,HashApp,HashFunction,Average,Count,Minimum,Maximum\no,a,f,1500,2,1000,2000\n"
    (tmp_path / "function_durations_percentiles.anon.d01.csv").write_text(durations)
    found = traces.read(tmp_path)
    assert (found.names, found.minute.tolist(), found.calls.tolist()) == (("o/a/f",), [30, 1470], [2, 2])
    assert (found.minutes, found.run.tolist()) == (2880, [1.5])


BROKEN = [
    ("head", "a,b\n1,2\n", "expected the columns"),
    ("number", "function,minute,calls\nf,x,1\n", "t.csv:2: expected a name and two whole numbers"),
    ("below zero", "function,minute,calls\nf,-1,1\n", "0 or more"),
]


@pytest.mark.parametrize(("text", "message"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN])
def test_a_broken_trace_is_refused_by_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(BadInput, match=message):
        traces.read(tmp_path / "t.csv")
    with pytest.raises(BadInput, match="no such file"):
        traces.read(tmp_path / "none.csv")


def test_shares_count_functions_with_enough_calls_only() -> None:
    outcome = Outcome(*(np.array(one, float) for one in ([9, 10, 20], [9, 5, 0], [0, 0, 0], [0, 0, 0], [1, 1, 1])))
    assert outcome.percentile(100) == 0.5
    assert outcome.cold_share == pytest.approx(14 / 39)
