"""What functions cost, from what was counted of their replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from relight.warm.functions import Function, Key
from relight.warm.settings import WarmSettings


@dataclass(frozen=True)
class Cost:
    """A function, or a tenant's functions together. Seconds of replicas; money as the prices have it."""

    name: str
    on: str
    """``GPU``, ``CPU``, or both."""
    busy: float
    idle: float
    cold: float
    """Seconds that callers waited for cold starts."""
    starts: int
    idle_money: float
    cold_money: float
    saved_money: float
    """What one replica that is always on would have cost more; below zero, less."""

    def document(self) -> dict[str, object]:
        return asdict(self)


def cost_rows(functions: Mapping[Key, Function], settings: WarmSettings, *, by_tenant: bool) -> list[Cost]:
    """The dearest idle ones first."""
    groups: dict[str, list[Function]] = {}
    for (namespace, name), function in functions.items():
        groups.setdefault(namespace if by_tenant else f"{namespace}/{name}", []).append(function)
    found = [_cost(name, group, settings) for name, group in groups.items()]
    return sorted(found, key=lambda one: (-one.idle_money, one.name))


def _cost(name: str, group: list[Function], settings: WarmSettings) -> Cost:
    prices = settings.prices
    kinds = sorted({"GPU" if one.gpu else "CPU" for one in group})
    rate = [(one.bill, one.share * prices.idle) for one in group]
    idle_money = sum(bill.idle * price for bill, price in rate)
    cold_money = sum(one.bill.cold for one in group) * prices.waiting
    always = sum(max(0.0, bill.watched - bill.busy) * price for bill, price in rate)
    return Cost(
        name,
        "+".join(kinds),
        sum(one.bill.busy for one in group),
        sum(one.bill.idle for one in group),
        sum(one.bill.cold for one in group),
        sum(one.bill.starts for one in group),
        idle_money,
        cold_money,
        always - idle_money - cold_money,
    )
