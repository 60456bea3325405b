"""How long the cold starts of functions take, from what sources have counted of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from relight.warm.functions import Function
from relight.warm.sources import Reading

FOLLOWING = 0.3
"""Weight of the newest cold start in what is known of them."""


@dataclass(frozen=True)
class _Counted:
    """Cold starts of a function since somebody counts."""

    number: float = 0.0
    seconds: float = 0.0
    phases: Counter[str] = field(default_factory=Counter)


class Starts:
    """What was counted of each function's cold starts when it was last looked at."""

    def __init__(self) -> None:
        self._seen: dict[int, _Counted] = {}

    def forget(self, row: int) -> None:
        """The row is another function's now."""
        self._seen.pop(row, None)

    def see(self, function: Function, seen: Sequence[Reading], *, own_doing: bool) -> bool:
        """Take in what is counted now; whether more is known of how long a start takes.

        ``own_doing``: a start that the policy had made, for which nobody waited, so that it is on nobody's bill.
        """
        now = _Counted(
            sum(one.cold_starts for one in seen),
            sum(one.cold_seconds for one in seen),
            sum((Counter(one.phases) for one in seen), Counter()),
        )
        before = self._seen.get(function.row)
        self._seen[function.row] = now
        if before is None:
            # Those of before it was watched tell how long one takes, where nothing else does.
            return bool(now.number) and not function.cold and _follow(function, now, _Counted())
        if now.number <= before.number:
            return False
        if not own_doing:
            function.bill.starts += int(now.number - before.number)
            function.bill.cold += now.seconds - before.seconds
        return _follow(function, now, before)


def _follow(function: Function, now: _Counted, before: _Counted) -> bool:
    number, seconds = now.number - before.number, now.seconds - before.seconds
    if seconds <= 0:
        return False

    def followed(known: float, new: float) -> float:
        return known + FOLLOWING * (new / number - known) if known else new / number

    function.cold = followed(function.cold, seconds)
    for name, total in now.phases.items():
        function.phases[name] = followed(function.phases.get(name, 0.0), total - before.phases[name])
    return True
