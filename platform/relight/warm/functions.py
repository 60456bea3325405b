"""What the policy holds of each function while it runs: the traffic, the state of its idle time, the bill."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from relight.decide.hours import WEEK
from relight.decide.idletimes import BINS, CLASSES, RECENT, IdleTimes
from relight.decide.placement import PEAKS

FORMAT = 1
Key = tuple[str, str]
"""Namespace and name of a function."""


@dataclass(slots=True)
class Bill:
    """Seconds of replicas since a function is watched. CPU and GPU alike: ``share`` tells them apart in money."""

    watched: float = 0.0
    busy: float = 0.0
    idle: float = 0.0
    cold: float = 0.0
    """Waited for by callers."""
    starts: int = 0


@dataclass(slots=True)
class Function:
    """One function. ``row``: its place in the arrays of ``IdleTimes``."""

    row: int
    share: float = 0.0
    gpu: bool = False
    cold: float = 0.0
    """Seconds of a cold start, a running mean; 0: none was seen."""
    phases: dict[str, float] = field(default_factory=dict)
    """The same of each of its phases."""
    bill: Bill = field(default_factory=Bill)
    requests: float | None = None
    """The counter when it was last read."""
    pings: int = 0
    """Pre-warm events that were sent and are not yet taken off the counter."""
    idle_since: float | None = None
    """When the last call ended; None: never called, or busy now."""
    busy: bool = False
    keep: float = 0.0
    ready: float = float("inf")
    until: float = float("inf")
    gain: float = 0.0
    pinged: float = 0.0
    """When the last pre-warm event was sent."""
    peaks: list[float] = field(default_factory=list)
    peak: float = 0.0
    reason: str = ""
    min_scale: int | None = None
    delay: int | None = None
    """What the policy asks for now; None: the user's own value."""

    def minutes_are_over(self, number: int) -> None:
        """The peak of concurrency of the last minutes is known: it was one in the first of them."""
        self.peaks = [*self.peaks, self.peak, *[0.0] * min(PEAKS, number - 1)][-PEAKS:]
        self.peak = 0.0


def pack(function: Function, times: IdleTimes) -> str:
    """As text for a ConfigMap: a kilobyte or less, since most of a histogram is empty."""
    counts = zlib.compress(times.counts[function.row].tobytes(), 9)
    week = zlib.compress(times.week[function.row].tobytes(), 9)
    known = ~np.isnan(times.recent[function.row])
    recent = [round(float(one), 2) for one in times.recent[function.row, known]]
    now = {name: getattr(function, name) for name in ("keep", "ready", "until")}
    return json.dumps(
        {
            "format": FORMAT,
            "counts": base64.b64encode(counts).decode(),
            "recent": recent,
            "began": base64.b64encode(times.began[function.row, known].tobytes()).decode(),
            "week": base64.b64encode(week).decode(),
            "share": function.share,
            "gpu": function.gpu,
            "cold": round(function.cold, 3),
            "phases": {name: round(seconds, 3) for name, seconds in function.phases.items()},
            "bill": {name: round(value, 1) for name, value in asdict(function.bill).items()},
            "idleSince": function.idle_since,
            "plan": {name: None if value == float("inf") else round(value, 1) for name, value in now.items()},
            "gain": function.gain,
            "reason": function.reason,
            "minScale": function.min_scale,
            "delay": function.delay,
            "peaks": function.peaks,
        },
        separators=(",", ":"),
    )


def unpack(text: str, row: int, times: IdleTimes) -> Function | None:
    """What ``pack`` made, put back; None where it is of another format or broken: it is learned anew.

    Hours of the week and phases may be missing: they were not always kept.
    """
    try:
        found: Mapping[str, Any] = json.loads(text)
        if found["format"] != FORMAT:
            return None
        raw = zlib.decompress(base64.b64decode(found["counts"]))
        counts = np.frombuffer(raw, np.float16).reshape(CLASSES, BINS)
        recent = np.array(found["recent"][-RECENT:], np.float32)
        began = np.frombuffer(base64.b64decode(found.get("began", "")), np.uint8)[-RECENT:]
        week = np.full(WEEK, np.nan, np.float16)
        if "week" in found:
            week = np.frombuffer(zlib.decompress(base64.b64decode(found["week"])), np.float16).reshape(WEEK)
        bill = {name: value for name, value in found["bill"].items() if name in Bill.__slots__}
        plan = {name: float("inf") if value is None else float(value) for name, value in found["plan"].items()}
        function = Function(
            row,
            share=float(found["share"]),
            gpu=bool(found["gpu"]),
            cold=float(found["cold"]),
            phases={str(name): float(seconds) for name, seconds in found.get("phases", {}).items()},
            bill=Bill(**bill),
            idle_since=found["idleSince"],
            keep=plan["keep"],
            ready=plan["ready"],
            until=plan["until"],
            gain=float(found["gain"]),
            reason=str(found["reason"]),
            min_scale=found["minScale"],
            delay=found["delay"],
            peaks=[float(one) for one in found["peaks"]],
        )
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error, zlib.error):
        return None
    times.forget(row)
    times.counts[row], times.week[row] = counts, week
    if len(recent):
        times.recent[row, -len(recent) :] = recent
    if len(began) == len(recent) > 0:
        times.began[row, -len(began) :] = began
    return function
