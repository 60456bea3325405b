"""Which models give way to one that is to be loaded, and whether it may be loaded at all: bytes against a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relight.base.units import format_bytes


@dataclass(frozen=True, slots=True)
class Held:
    """A loaded model. ``used`` is when it was last asked for, on any clock; ``busy``: a request is in flight."""

    key: str
    bytes: int
    used: float
    busy: bool = False
    kept: bool = False
    """It may not give way: the version that serves until its successor is ready."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """It may be loaded once these are gone, in this order. The busy ones are waited for."""

    evict: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """It may not be loaded, and why: budget, in use, needed."""

    reason: str


def admit(key: str, needed: int, budget: int, held: Sequence[Held]) -> Admitted | Refused:
    """Make room for a model of ``needed`` bytes; ``budget`` 0: there is none, and everything fits.

    The least recently used go first, those in use only where the idle ones are not enough. No more go than must.
    """
    if budget <= 0:
        return Admitted()
    in_use = sum(model.bytes for model in held)
    kept = sum(model.bytes for model in held if model.kept)
    if kept + needed > budget:
        told = f"{key}: it needs {_bytes(needed)}, the budget is {_bytes(budget)} and {_bytes(in_use)} are in use"
        if kept:
            names = ", ".join(model.key for model in held if model.kept)
            told += f", {_bytes(kept)} of it by {names}, which serves until the new version is ready"
        return Refused(told)
    missing = in_use + needed - budget
    chosen: list[Held] = []
    for model in sorted((model for model in held if not model.kept), key=lambda model: (model.busy, model.used)):
        if missing <= 0:
            break
        chosen.append(model)
        missing -= model.bytes
    # A small one that was chosen before a large one may not have had to go.
    for model in sorted(chosen, key=lambda model: (not model.busy, -model.used)):
        if missing + model.bytes <= 0:
            chosen.remove(model)
            missing += model.bytes
    return Admitted(tuple(model.key for model in chosen))


def _bytes(count: int) -> str:
    return f"{count} bytes ({format_bytes(count)})"
