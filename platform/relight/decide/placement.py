"""How many copies of which model stay up: one budget of GPUs for all, spent where it saves most waiting.

A hot model's wish comes from the concurrency of the coming window: that of the last one, times what other weeks had
more or less then. It is as many replicas as a high quantile of the peaks needs, and not fewer than now until even the
highest peak needs fewer (the two quantiles are the hysteresis). What the user said comes first: bans, pins, rules of
the hour. Then everybody's first replica, then further ones, each time the one that saves most waiting per GPU-second
that it occupies. Who keeps one already is a little ahead, so that two that are worth the same do not take turns.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

UP, DOWN = 0.9, 1.0
"""Quantiles of the peaks: the one that a number of replicas must be enough for, and the one that all must fall below
before there are fewer."""
PEAKS = 30
"""Peaks that are looked at: one a minute. The coming window is as long."""
BUSY = 0.5
"""Share of the peaks above zero from which on a model counts as hot at all."""
STAYING = 1.1
"""How much more a replica that is up already counts."""
FLOOR = 0.5
"""Part of the budget that tenants share alike, so that none is left with nothing because others are called more."""
SMALL = 1e-9
"""GPUs; sums of shares are not exact."""


@dataclass(frozen=True)
class Wish:
    """What one function would have."""

    name: str
    replicas: int
    """To be kept up, by what was learned."""
    share: float
    """Of a GPU, per replica; 0 for those that need none."""
    worth: float
    """Waiting seconds that its first replica saves, per second."""
    reason: str = ""
    least: int = 0
    """By a pin or a rule of the user."""
    most: int | None = None
    """By a rule of the user; 0: banned."""
    present: int = 0
    tenant: str = ""
    """Whose it is: floors are for tenants."""


@dataclass(frozen=True)
class Grant:
    """What one function gets."""

    replicas: int
    reason: str


def wanted(peaks: Sequence[float], target: float, present: int, growth: float = 1.0) -> int:
    """Replicas for a model, by the peaks of concurrency of the last minutes and the load that one replica bears.

    ``growth``: how many times as much is to be expected of the coming ones.
    """
    recent = list(peaks)[-PEAKS:]
    if len(recent) < 2 or sum(peak > 0 for peak in recent) < BUSY * len(recent):
        return 0
    ordered = sorted(recent)

    def needed(quantile: float) -> int:
        at = min(len(ordered) - 1, math.ceil(quantile * len(ordered)) - 1)
        return math.ceil(ordered[at] * growth / max(target, 1e-9))

    return max(needed(UP), min(present, needed(DOWN)))


def place(wishes: Iterable[Wish], budget: float | None, floor: float = FLOOR) -> dict[str, Grant]:
    """The replicas of each function within a budget of GPUs (None: no bound).

    ``floor``: the part of the budget that tenants share alike. What users pinned is granted even beyond the budget:
    they said so, and are told.
    """
    wishes = list(wishes)
    granted = {wish.name: wish.least for wish in wishes}
    reasons = {wish.name: wish.reason for wish in wishes}
    left = math.inf if budget is None else budget - sum(wish.least * wish.share for wish in wishes)
    if left < 0:
        for wish in wishes:
            if wish.least and wish.share:
                reasons[wish.name] += f"; pins and rules take {-left:g} GPUs more than the budget of {budget:g}"
    if budget is not None:
        left -= _fill_floors(wishes, granted, min(floor * budget, left))
    waiting = [
        (_order(wish, granted[wish.name]), at) for at, wish in enumerate(wishes) if _more(wish, granted[wish.name])
    ]
    heapq.heapify(waiting)
    while waiting:
        _, at = heapq.heappop(waiting)
        wish = wishes[at]
        if wish.share > left + SMALL:
            reasons[wish.name] = f"the budget of {budget:g} GPUs is spent where it saves more waiting"
            continue
        left -= wish.share
        granted[wish.name] += 1
        if _more(wish, granted[wish.name]):
            heapq.heappush(waiting, (_order(wish, granted[wish.name]), at))
    return {name: Grant(number, reasons[name]) for name, number in granted.items()}


def _fill_floors(wishes: Sequence[Wish], granted: dict[str, int], pool: float) -> float:
    """Grant replicas to the tenants that have least, in turn, while the pool lasts; the GPUs that they take."""
    has: dict[str, float] = {}
    waiting: dict[str, list[tuple[tuple[int, float], int]]] = {}
    for at, wish in enumerate(wishes):
        has[wish.tenant] = has.get(wish.tenant, 0.0) + wish.least * wish.share
        if wish.share > 0 and _more(wish, granted[wish.name]):
            heapq.heappush(waiting.setdefault(wish.tenant, []), (_order(wish, granted[wish.name]), at))
    if len(waiting) < 2:
        return 0.0
    taken = 0.0
    while waiting:
        tenant = min(waiting, key=lambda one: (has[one], waiting[one][0]))
        _, at = heapq.heappop(waiting[tenant])
        wish = wishes[at]
        if wish.share <= pool - taken + SMALL:
            taken += wish.share
            has[tenant] += wish.share
            granted[wish.name] += 1
            if _more(wish, granted[wish.name]):
                heapq.heappush(waiting[tenant], (_order(wish, granted[wish.name]), at))
        if not waiting[tenant]:
            del waiting[tenant]
    return taken


def _more(wish: Wish, has: int) -> bool:
    return has < wish.replicas and (wish.most is None or has < wish.most)


def _order(wish: Wish, has: int) -> tuple[int, float]:
    """Smaller comes first: everybody's first replica, then what is worth most."""
    return min(has, 1), -_worth(wish, has)


def _worth(wish: Wish, has: int) -> float:
    """Of one more replica: each further one saves less, and one that is up already counts more."""
    value = wish.worth / (has + 1) ** 2 * (STAYING if has < wish.present else 1.0)
    return math.inf if wish.share <= 0 else value / wish.share
