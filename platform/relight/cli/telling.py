"""Events and deliveries as people read them: tables, lines, trees."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from relight.cli.output import print_table

_REASON = 60
"""Characters of a reason in a table; all of it is in ``-o json``."""


def clock(seconds: float) -> str:
    """A moment as local time, with milliseconds."""
    return time.strftime("%H:%M:%S", time.localtime(seconds)) + f".{int(seconds % 1 * 1000):03d}"


def span(seconds: float) -> str:
    """A length of time, in the unit that fits: ``3.2ms``, ``1.5s``, ``4m10s``, ``3h5m``, ``2d4h``."""
    seconds = max(0.0, seconds)
    if seconds < 1:
        return f"{seconds * 1000:.1f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s"
    for unit, size, part, smaller in (("m", 60, "s", 1), ("h", 3600, "m", 60), ("d", 86400, "h", 3600)):
        if seconds < size * {"m": 60, "h": 24, "d": 10**9}[unit]:
            return f"{int(seconds // size)}{unit}{int(seconds % size // smaller)}{part}"
    return f"{seconds:.0f}s"


def print_deliveries(rows: Iterable[Mapping[str, Any]], now: float) -> None:
    """One line per delivery: what waits with when it is due, what is dead with since when."""
    cells = []
    for row in rows:
        event = row["event"]
        if row["state"] == "dead":
            when = f"{span(now - row['died'])} ago"
        elif row.get("paused"):
            when = "paused"
        else:
            when = "now" if row["due"] <= now else f"in {span(row['due'] - now)}"
        reason = str(row["reason"])
        short = reason if len(reason) <= _REASON else reason[: _REASON - 1] + "…"
        cells.append([event["id"], event["type"], row["trigger"], row["attempts"], when, short or "-"])
    print_table(["event", "type", "trigger", "attempts", "when", "reason"], cells, wrap=True)


def passing(row: Mapping[str, Any]) -> str:
    """An event that passes, as one line."""
    if "missed" in row:
        return f"... {row['missed']} events were missed: too many came at once"
    event = row["event"]
    subject = f" {event['subject']}" if event.get("subject") else ""
    wanted = {0: "nobody wants it", 1: "1 trigger"}.get(row["triggers"], f"{row['triggers']} triggers")
    return (
        f"{clock(row['received'])} {row['broker']} {event['type']} {event['id']} {event['source']}{subject} ({wanted})"
    )


def trace_lines(roots: Iterable[Mapping[str, Any]], now: float) -> Iterator[str]:
    """The tree of what became of events."""
    for root in roots:
        trace = f"  trace {root['trace']}" if root.get("trace") else ""
        yield f"{root['type']} {root['id']}  {clock(root['received'])}{trace}"
        yield from _deliveries(root, "", now)


def _deliveries(event: Mapping[str, Any], pad: str, now: float) -> Iterator[str]:
    rows = list(event["deliveries"])
    if not rows:
        yield f"{pad}└─ nobody wants it"
    for at, row in enumerate(rows):
        last = at == len(rows) - 1
        yield f"{pad}{'└─' if last else '├─'} {_delivery(event, row, now)}"
        below = pad + ("   " if last else "│  ")
        for attempt in row["tries"]:
            yield f"{below}   {clock(attempt['began'])} {attempt['reason']}"
        if row.get("reply"):
            reply = row["reply"]
            yield f"{below}→ {reply['type']} {reply['id']}"
            yield from _deliveries(reply, below, now)


def _delivery(event: Mapping[str, Any], row: Mapping[str, Any], now: float) -> str:
    attempts = "" if row["attempts"] <= 1 else f", attempt {row['attempts']}"
    match row["state"]:
        case "done":
            waited, took = span(row["began"] - event["received"]), span(row["ended"] - row["began"])
            status = f" {row['status']}" if row["status"] else ""
            return f"{row['trigger']}{status}: waited {waited}, took {took}{attempts}"
        case "known":
            return f"{row['trigger']}: not delivered, it had been answered before"
        case "sunk":
            return (
                f"{row['trigger']}: failed; its dead-letter sink took it after {span(row['ended'] - event['received'])}"
            )
        case "dead":
            return f"{row['trigger']}: given up at {clock(row['at'])}{attempts}: {row['reason']}"
    waited = span(now - event["received"])
    if row.get("paused"):
        return f"{row['trigger']}: has waited {waited}, paused{attempts}"
    due = "now" if row["at"] <= now else f"in {span(row['at'] - now)}"
    return f"{row['trigger']}: has waited {waited}, due {due}{attempts}"
