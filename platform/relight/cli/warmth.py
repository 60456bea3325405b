"""How plans, histograms and money are told to people."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from relight.warm.explaining import Explanation
from relight.warm.functions import Function

_BAR = 40


def span(seconds: float) -> str:
    """A length of time in the unit that fits it: ``45s``, ``12m``, ``6.0h``, ``1.5d``."""
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "m"), (172800, 3600, "h")):
        if seconds < limit:
            value = seconds / unit
            return f"{value:.0f}{name}" if value >= 10 or value == int(value) else f"{value:.1f}{name}"
    return f"{seconds / 86400:.1f}d"


def plan_of(function: Function) -> str:
    """A plan in a few words."""
    parts = [f"keep {span(function.keep)}"] if function.keep else []
    if math.isfinite(function.ready):
        parts.append(f"ready {span(function.ready)} to {span(function.until)}")
    return ", ".join(parts) or "let go at once"


def phases(function: Function) -> str:
    """How long a cold start takes and what of it, the longest first."""
    parts = sorted(function.phases.items(), key=lambda part: -part[1])
    return (
        f"{function.cold:.2f} s ({', '.join(f'{name} {seconds:.2f}' for name, seconds in parts if seconds >= 0.005)})"
    )


def moment(since: float | None) -> str:
    """When a call was, seen from now."""
    return "-" if since is None else f"{span(max(0.0, time.time() - since))} ago"


def money(value: float) -> str:
    return f"{value:.6f}"


def histogram(found: Explanation) -> Iterator[str]:
    """Idle times as text, with what the plan does in each of them."""
    if not found.bars:
        yield "no idle time was seen at this pace: all functions together stand for it"
        return
    yield f"idle times at its present pace ({found.pace}), {found.samples:.0f} of them; # a replica is up by the plan"
    most = max(share for _, _, share, _ in found.bars)
    for begin, end, share, warm in found.bars:
        bar = ("#" if warm else ".") * max(1 if share else 0, round(_BAR * share / most))
        yield f"{span(begin):>6} to {span(end):<6} {100 * share:5.1f} %  {bar}"
