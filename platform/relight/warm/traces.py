"""Traces of calls: per function and minute, how many. From our own CSV, from the Azure Functions CSVs, or arrays."""

from __future__ import annotations

import csv
import json
import math
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
MOST = 10_000_000
"""Bound of all numbers in a trace: minutes are those of nineteen years."""
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
    try:
        with path.open(newline="", encoding="utf-8") as file:
            head = next(csv.reader(file), [])
        if head[:1] == ["HashOwner"]:
            return azure([path])
        if tuple(head) != OWN:
            raise BadInput(f"{path}: expected the columns {','.join(OWN)} or those of the Azure Functions trace")
        return _own(path)
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not text in UTF-8: {error}") from error


def _own(path: Path) -> Trace:
    names: dict[str, int] = {}
    rows: list[tuple[int, int, int]] = []
    with path.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            try:
                name, minute, calls = row["function"], int(row["minute"]), int(row["calls"])
            except (TypeError, ValueError):
                raise BadInput(f"{path}:{number}: expected a name and two whole numbers, got {dict(row)}") from None
            if not (0 <= minute < MOST and 0 <= calls < MOST):
                raise BadInput(f"{path}:{number}: minute and calls are 0 or more, and below {MOST:,}")
            rows.append((names.setdefault(name, len(names)), minute, calls))
    table = np.array(rows, np.int64).reshape(-1, 3)
    return _made(path.stem, list(names), table[:, 0], table[:, 1], table[:, 2], _costs(path.with_suffix(".json")))


def azure(days: list[Path]) -> Trace:
    """Days of the Azure Functions trace: columns 1 to 1440 hold the calls of each minute, functions are hashes."""
    names: dict[str, int] = {}
    parts: list[tuple[Ints, Ints, Ints]] = []
    runs: dict[str, float] = {}
    for day, path in enumerate(days):
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            head = next(reader, [])
            if head[:3] != ["HashOwner", "HashApp", "HashFunction"] or "1440" not in head:
                raise BadInput(f"{path}: expected HashOwner,HashApp,HashFunction,Trigger,1,…,1440")
            first = head.index("1")
            for number, row in enumerate(reader, start=2):
                counts = _minutes(row[first : first + 1440])
                if counts is None:
                    raise BadInput(
                        f"{path}:{number}: expected 1440 numbers of 0 or more, after {','.join(row[:first])}"
                    )
                here = np.flatnonzero(counts)
                at = names.setdefault("/".join(row[:3]), len(names))
                parts.append((np.full(len(here), at), here + 1440 * day, counts[here]))
        durations = path.with_name(path.name.replace("invocations_per_function_md", "function_durations_percentiles"))
        if durations != path and durations.is_file():
            runs |= dict(_durations(durations))
    function, minute, calls = (np.concatenate([np.zeros(0, np.int64), *column]) for column in zip(*parts, strict=True))
    costs = _Costs({name: (COLD, seconds, SHARE) for name, seconds in runs.items() if name in names}, 1440 * len(days))
    return _made(days[0].stem, list(names), function, minute, calls, costs)


def _minutes(texts: list[str]) -> Ints | None:
    """The calls of a day; None where they are not 1440 numbers."""
    try:
        counts = np.array([text or "0" for text in texts], np.float64)
    except ValueError:
        return None
    return counts.astype(np.int64) if len(counts) == 1440 and bool(((counts >= 0) & (counts < MOST)).all()) else None


def _durations(path: Path) -> Iterator[tuple[str, float]]:
    with path.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            try:
                name, average = "/".join((row["HashOwner"], row["HashApp"], row["HashFunction"])), float(row["Average"])
            except (KeyError, TypeError, ValueError):
                raise BadInput(f"{path}:{number}: expected HashOwner,HashApp,HashFunction,Average,…") from None
            if not 0.0 <= average < math.inf:
                raise BadInput(f"{path}:{number}: expected an Average in milliseconds, of 0 or more")
            yield name, average / 1000


@dataclass(frozen=True)
class _Costs:
    """What stands beside a trace. ``minutes``: how long it is at least."""

    functions: dict[str, tuple[float, float, float]]
    """Seconds of a cold start, seconds of a call, share of a GPU."""
    minutes: int = 0
    scored_from: int = 0


def _costs(path: Path) -> _Costs:
    """From the JSON beside a trace; BadInput names what is wrong in it. Without one: nothing is known."""
    if not path.is_file():
        return _Costs({})
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInput(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("meta", []), list):
        raise BadInput(f"{path}: expected an object with meta (a list), minutes and scored_from_minute")
    functions = {}
    for at, one in enumerate(found.get("meta", [])):
        if not isinstance(one, dict):
            raise BadInput(f"{path}: meta[{at}]: expected an object")
        name = str(one.get("name", one.get("function", at)))
        cold, run = (_number(path, f"meta[{at}].{key}", one.get(key, usual)) for key, usual in _USUAL[:2])
        share = _number(path, f"meta[{at}].gpu_share", one.get("gpu_share", SHARE))
        functions[name] = (cold, run, share)
    minutes, scored = (int(_number(path, key, found.get(key) or 0)) for key in ("minutes", "scored_from_minute"))
    return _Costs(functions, minutes, scored)


_USUAL = (("cold_s", COLD), ("run_s", RUN))


def _number(path: Path, field: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MOST:
        raise BadInput(f"{path}: {field}: expected a number of 0 or more, and below {MOST:,}, got {value!r}")
    return float(value)


def _made(name: str, names: list[str], function: Ints, minute: Ints, calls: Ints, costs: _Costs) -> Trace:
    """Sorted, with the calls of one function in one minute as one entry."""
    names = list(dict.fromkeys([*names, *costs.functions]))
    some = calls > 0
    function, minute, calls = function[some], minute[some], calls[some]
    order = np.lexsort((minute, function))
    function, minute, calls = function[order], minute[order], calls[order]
    first = np.flatnonzero((np.diff(function, prepend=-1) != 0) | (np.diff(minute, prepend=-1) != 0))
    told = np.array([costs.functions.get(one, (COLD, RUN, SHARE)) for one in names]).reshape(-1, 3)
    return Trace(
        name,
        tuple(names),
        function[first],
        minute[first],
        np.add.reduceat(calls, first) if len(first) else calls,
        told[:, 0],
        told[:, 1],
        told[:, 2],
        max(costs.minutes, int(minute.max(initial=-1)) + 1),
        costs.scored_from,
    )


def _arrays(path: Path) -> Trace:
    try:
        with np.load(path) as stored:
            function, minute, calls = (stored[name].astype(np.int64) for name in OWN)
    except (KeyError, ValueError, OSError) as error:
        raise BadInput(f"{path} is not a trace: {error}") from error
    costs = _costs(path.with_suffix(".json"))
    names = list(costs.functions)
    if len(function) and not (function.min() >= 0 and function.max() < len(names) and minute.min() >= 0):
        raise BadInput(f"{path}: expected functions below the {len(names)} that {path.stem}.json describes")
    return _made(path.stem, names, function, minute, calls, costs)


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
