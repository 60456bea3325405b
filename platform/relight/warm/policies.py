"""Policies for the simulator, by name: what a replica does after each entry of a trace.

Each sees, at an entry, only what came before it. What is learned is turned into plans once an hour of the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from relight.base.errors import BadInput
from relight.base.units import parse_duration
from relight.decide import hybrid
from relight.decide.idletimes import Ints
from relight.decide.keepalive import Prices
from relight.warm.learning import in_order, learned
from relight.warm.lines import Plan
from relight.warm.settings import WarmSettings
from relight.warm.simulating import Entries, Outcome, oracle, simulate
from relight.warm.traces import MINUTE

EPOCH = 60
"""Minutes of the trace between two rounds of learning."""
KNATIVE = 65.0
"""Seconds from the last request to the end of the replica with Knative's defaults: a stable window of 60 s, a tick, and
the fast path to zero that goes with the default target-burst-capacity."""

Policy = Callable[[Entries, Prices], Outcome]
NAMES = "fixed:SECONDS (or a duration: fixed:10m), knative, hybrid, relight, always-on, oracle"


def policy(name: str) -> Policy:
    """The policy of a name; BadInput: there is none."""
    kind, _, value = name.partition(":")
    if kind == "fixed" and value:
        try:
            seconds = float(value) if value.replace(".", "", 1).isdigit() else parse_duration(value)
        except ValueError as error:
            raise BadInput(f"{name}: {error}", param="policy") from None
        return partial(_fixed, seconds)
    known: dict[str, Policy] = {
        "knative": partial(_fixed, KNATIVE),
        "always-on": partial(_fixed, np.inf),
        "hybrid": lambda entries, prices: simulate(entries, published(entries)),
        "relight": lambda entries, prices: simulate(entries, ours(entries, prices)),
        "oracle": lambda entries, prices: oracle(entries),
    }
    if name not in known:
        raise BadInput(f"there is no policy {name!r}; there are {NAMES}", param="policy")
    return known[name]


def _fixed(seconds: float, entries: Entries, prices: Prices) -> Outcome:
    return simulate(entries, Plan(seconds))


def ours(entries: Entries, prices: Prices, *, epoch: float = EPOCH, seasons: bool = True) -> Plan:
    """relight's own: ``decide.keepalive``, with what it learns of each function and of all.

    ``epoch``: minutes between two rounds of learning. ``seasons``: whether the hour of the week counts; the trace
    begins on a Monday at 00:00.
    """
    return learned(entries, prices, epoch, seasons=seasons)


@dataclass(frozen=True)
class Platform:
    """What becomes of plans on a platform of Knative's kind, local mode for one. Seconds."""

    window: float
    """The stable window: no replica goes earlier than that after a call, a pre-warm event among them."""
    ticks: float = 2.0
    """From the end of a window to that of the replica: autoscaler and last step look every two seconds."""
    look: float = 1.0
    """Between two looks of the policy."""
    lead: float = WarmSettings.lead
    """By which a pre-warm is sent before the cold start that is planned for."""

    def carried_out(self, plan: Plan) -> Plan:
        """When replicas are really up, on average: looks come half of the time between two of them late."""
        keep = np.maximum(plan.keep, self.window) + self.ticks
        ready = plan.ready - self.lead + self.look / 2
        until = np.maximum(plan.until + self.look / 2 + self.ticks, ready + self.window + self.ticks)
        late = ready <= keep
        return Plan(
            np.where(late & np.isfinite(plan.ready), until, keep),
            np.where(late, np.inf, ready),
            np.where(late, np.inf, until),
        )


def published(entries: Entries) -> Plan:
    """The hybrid histogram policy as it was published: ``decide.hybrid``."""
    trace = entries.trace
    counts = np.zeros((trace.size, hybrid.RANGE + 1))
    means = np.zeros(trace.size)
    current = list(hybrid.decide(counts, means))
    chosen = [np.empty(len(entries)) for _ in current]
    for _, rows in _epochs(trace.minute // EPOCH):
        function = entries.function[rows]
        for made, now in zip(chosen, current, strict=True):
            made[rows] = now[function]
        kept = rows[entries.idle[rows] > 0]
        if not len(kept):
            continue
        names, idle = entries.function[kept], entries.idle[kept]
        active = np.unique(names)
        np.add.at(counts, (names, np.minimum(idle // MINUTE, hybrid.RANGE).astype(np.int64)), 1)
        # One idle time after the other enters the forecast; in an hour there is hardly more than one that counts.
        for name, seconds in zip(names.tolist(), idle.tolist(), strict=True):
            means[name] += (seconds - means[name]) * (hybrid.SMOOTHING if means[name] else 1.0)
        for now, new in zip(current, hybrid.decide(counts[active], means[active]), strict=True):
            now[active] = new
    return Plan(*chosen)


def _epochs(epoch: Ints) -> Iterator[tuple[int, Ints]]:
    """The number of each epoch in turn and its rows, in the order of the trace within it."""
    order = in_order(epoch)
    edges = np.flatnonzero(np.diff(epoch[order])) + 1
    for rows in np.split(order, edges):
        yield int(epoch[rows[0]]), rows
