"""Traffic split: which of a route's targets takes a request.

Percents are whole numbers that add up to 100 (the Route's validation sees to that). A target with 0 percent is reached
only by its tag.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from relight.base.errors import BadInput


class Target(Protocol):
    """What a split needs to know of a target."""

    @property
    def percent(self) -> int: ...

    @property
    def tag(self) -> str | None: ...


T = TypeVar("T", bound=Target)


def pick(targets: Sequence[T], random01: float) -> T:
    """The target whose share of [0, 1) holds ``random01``, shares laid end to end in the order given.

    BadInput where no target takes traffic: a route that has only tags has no address of its own.
    """
    at = random01 * 100.0
    last: T | None = None
    for target in targets:
        if target.percent <= 0:
            continue
        last = target
        at -= target.percent
        if at < 0:
            return target
    if last is None:
        raise BadInput("no target of this route takes traffic: every percent is 0")
    # Percents that add up to less than 100 leave a rest, which goes to the last one rather than to nobody.
    return last


def tagged(targets: Sequence[T], tag: str) -> T | None:
    """The target that carries a tag; None where there is none."""
    for target in targets:
        if target.tag == tag:
            return target
    return None
