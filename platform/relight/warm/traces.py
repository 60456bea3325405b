"""Traces of calls: per function and minute, how many. From our own CSV, from the Azure Functions CSVs, or arrays."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relight.base.errors import BadInput
from relight.decide.idletimes import Floats, Ints

MINUTE = 60.0
OWN = ("function", "minute", "calls")
"""Columns of our own CSV; the file beside it, ``NAME.json``, may say what each function costs."""
COLD, RUN, SHARE = 5.0, 0.3, 0.25
"""Of a function that nothing is said about: seconds of a cold start, seconds of a call, share of a GPU."""


@dataclass(frozen=True)
class Trace:
    """Calls by function and minute, sorted by both. Calls of one minute are spread evenly over it."""

    name: str
    names: tuple[str, ...]
    function: Ints
    minute: Ints
    calls: Ints
    cold: Floats
    """Per function: seconds of a cold start,"""
    run: Floats
    """seconds of a call,"""
    share: Floats
    """share of one GPU while a replica is up."""
    minutes: int
    scored_from: int
    """Minute from which on costs count; what is before is for learning."""

    @property
    def size(self) -> int:
        return len(self.names)


def read(path: Path) -> Trace:
    """A trace from a file: ``.npz`` (with ``.json`` beside it) or CSV, Azure's or our own. BadInput says what is wrong.

    Of the Azure Functions trace of 2019 one or several days of ``invocations_per_function_md.anon.dDD.csv`` are read
    where the path is their folder, in the order of their names, with ``function_durations_percentiles…`` beside them.
    """
    if path.is_dir():
        days = sorted(path.glob("invocations_per_function*.csv"))
        if not days:
            raise BadInput(f"{path} holds no invocations_per_function*.csv")
        return azure(days)
    if not path.is_file():
        raise BadInput(f"{path}: no such file")
    if path.suffix == ".npz":
        return _arrays(path)
    with path.open(newline="", encoding="utf-8") as file:
        head = next(csv.reader(file), [])
    if head[:1] == ["HashOwner"]:
        return azure([path])
    if tuple(head) != OWN:
        raise BadInput(f"{path}: expected the columns {','.join(OWN)} or those of the Azure Functions trace")
    return _own(path)


def _own(path: Path) -> Trace:
    found: dict[tuple[str, int], int] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            try:
                key, calls = (row["function"], int(row["minute"])), int(row["calls"])
            except (TypeError, ValueError):
                raise BadInput(f"{path}:{number}: expected a name and two whole numbers, got {dict(row)}") from None
            if key[1] < 0 or calls < 0:
                raise BadInput(f"{path}:{number}: minute and calls are 0 or more")
            found[key] = found.get(key, 0) + calls
    costs = _beside(path)
    described = {str(one.get("name", one.get("function"))): one for one in costs.get("meta", ())}
    names = tuple(dict.fromkeys([*(name for name, _ in found), *described]))
    minutes = int(costs.get("minutes") or max((minute for _, minute in found), default=-1) + 1)
    return _made(path.stem, names, found, described, minutes, int(costs.get("scored_from_minute") or 0))


def azure(days: list[Path]) -> Trace:
    """Days of the Azure Functions trace: columns 1 to 1440 hold the calls of each minute, functions are hashes."""
    found: dict[tuple[str, int], int] = {}
    described: dict[str, dict[str, float]] = {}
    for day, path in enumerate(days):
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            head = next(reader, [])
            if head[:3] != ["HashOwner", "HashApp", "HashFunction"] or "1440" not in head:
                raise BadInput(f"{path}: expected HashOwner,HashApp,HashFunction,Trigger,1,…,1440")
            first = head.index("1")
            for row in reader:
                name = "/".join(row[:3])
                for minute, text in enumerate(row[first : first + 1440]):
                    if text not in ("0", ""):
                        found[name, day * 1440 + minute] = int(float(text))
        durations = path.with_name(path.name.replace("invocations_per_function_md", "function_durations_percentiles"))
        if durations != path and durations.is_file():
            described |= dict(_durations(durations))
    names = tuple(dict.fromkeys(name for name, _ in found))
    return _made(days[0].stem, names, found, described, 1440 * len(days), 0)


def _durations(path: Path) -> Iterator[tuple[str, dict[str, float]]]:
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            name = "/".join((row["HashOwner"], row["HashApp"], row["HashFunction"]))
            yield name, {"run_s": float(row["Average"]) / 1000}


def _made(
    name: str,
    names: tuple[str, ...],
    found: dict[tuple[str, int], int],
    described: dict[str, dict[str, float]],
    minutes: int,
    scored_from: int,
) -> Trace:
    at = {one: index for index, one in enumerate(names)}
    entries = sorted((at[one], minute, calls) for (one, minute), calls in found.items() if calls)
    table = np.array(entries, dtype=np.int64).reshape(-1, 3)
    told = [described.get(one, {}) for one in names]
    return Trace(
        name,
        names,
        table[:, 0],
        table[:, 1],
        table[:, 2],
        np.array([float(one.get("cold_s", COLD)) for one in told]),
        np.array([float(one.get("run_s", RUN)) for one in told]),
        np.array([float(one.get("gpu_share", SHARE)) for one in told]),
        minutes,
        scored_from,
    )


def _arrays(path: Path) -> Trace:
    costs = _beside(path)
    try:
        with np.load(path) as stored:
            function, minute, calls = (stored[name].astype(np.int64) for name in OWN)
        meta = costs["meta"]
        cold, run, share = (np.array([float(one[key]) for one in meta]) for key in ("cold_s", "run_s", "gpu_share"))
    except (KeyError, ValueError) as error:
        raise BadInput(f"{path} and {path.with_suffix('.json').name} are not a trace: {error}") from error
    order = np.lexsort((minute, function))
    return Trace(
        path.stem,
        tuple(str(one.get("name", one.get("function", at))) for at, one in enumerate(meta)),
        function[order],
        minute[order],
        calls[order],
        cold,
        run,
        share,
        int(costs["minutes"]),
        int(costs.get("scored_from_minute") or 0),
    )


def _beside(path: Path) -> dict[str, Any]:
    beside = path.with_suffix(".json")
    if not beside.is_file():
        return {}
    try:
        found = json.loads(beside.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInput(f"{beside} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadInput(f"{beside}: expected an object with meta, minutes and scored_from_minute")
    return found


def write(trace: Trace, path: Path) -> None:
    """As our own CSV, with the costs beside it."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(OWN)
        rows = zip(trace.function.tolist(), trace.minute.tolist(), trace.calls.tolist(), strict=True)
        writer.writerows((trace.names[function], minute, calls) for function, minute, calls in rows)
    meta = [
        {"name": name, "cold_s": float(cold), "run_s": float(run), "gpu_share": float(share)}
        for name, cold, run, share in zip(trace.names, trace.cold, trace.run, trace.share, strict=True)
    ]
    document = {"name": trace.name, "minutes": trace.minutes, "scored_from_minute": trace.scored_from, "meta": meta}
    path.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
