"""What runs of a model cost by their number of rows, learned from the runs themselves.

Larger runs are not always cheaper: on two CPU threads eight rows of a small encoder cost a third more per row than one
at a time. So each size is tried, and those that do not pay are left alone, but for a rare look whether it is still so.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

OVERHEAD = 100e-6
"""Seconds that a run costs beside the model: the hand-over to a thread and back."""
SAVING = 0.05
"""Share of a row's cost that a larger run must save: below, it would only make the first of its rows wait."""
SURE = 3
"""Runs of a size before it is judged. Until then its best run counts: first runs of a size are often slow."""
SHARE = 0.2
"""Weight of the newest run in the average."""
CLIP = 2.0
"""How much longer than expected a run may count: others on the machine interrupt runs, rarely twice in a row."""
GROWTH = 4
"""How much larger than the largest run so far a run of unknown cost may be."""
FIRST = 2
"""What stands for the largest run where there was none as large: first runs are of up to ``GROWTH`` times that."""
REVISIT = 256
"""Runs after which a size that did not pay is tried again; times the square of how much more it cost."""


@dataclass(slots=True, order=True)
class _Size:
    """One class of sizes: its average run."""

    rows: float
    seconds: float
    seen: int
    last: int
    """Of all runs, the number of the newest of this class."""


class Costs:
    """Average runs by class of size: 1, 2, 3 to 4, 5 to 8, and so on; between them costs are taken for linear."""

    def __init__(self) -> None:
        self._classes: dict[int, _Size] = {}
        self._sure: list[_Size] = []
        self._runs = 0

    def learn(self, rows: int, seconds: float) -> None:
        """A run of ``rows`` took ``seconds``."""
        if rows < 1:
            return
        self._runs += 1
        size = self._classes.get(_class(rows))
        if size is None:
            size = self._classes[_class(rows)] = _Size(rows, seconds, 0, 0)
        size.seen += 1
        size.last = self._runs
        expected = size.seconds * rows / size.rows
        if size.seen > SURE:
            size.rows += SHARE * (rows - size.rows)
            size.seconds += SHARE * (min(seconds, CLIP * expected) - size.seconds)
        elif seconds < expected:
            size.rows, size.seconds = rows, seconds
        if size.seen == SURE:
            insort(self._sure, size)

    def run(self, rows: int) -> float | None:
        """Seconds that a run of so many rows should take; None where its class was not seen often enough."""
        size = self._classes.get(_class(rows))
        return None if size is None or size.seen < SURE else self._between(rows)

    def at_most(self, rows: int) -> float | None:
        """As ``run``, and for larger runs than any known in proportion to the largest known; None below."""
        return self._between(rows) if self._sure and rows >= self._sure[0].rows else self.run(rows)

    def _between(self, rows: int) -> float:
        before = None
        for size in self._sure:
            if size.rows >= rows:
                if before is None or size.rows == before.rows:
                    return size.seconds
                share = (rows - before.rows) / (size.rows - before.rows)
                return before.seconds + share * (size.seconds - before.seconds)
            before = size
        assert before is not None
        return before.seconds * rows / before.rows

    def best(self, sizes: Sequence[int]) -> int:
        """Of these sizes, in ascending order, the one whose rows cost least; one of unknown cost is tried.

        A larger one must save something. One that did not pay is tried again after a long while, and one that is above
        a size that does not pay is not tried at all.
        """
        limit = GROWTH * max([FIRST, *(2**known for known in self._classes)])
        chosen, least = sizes[0], None
        untried: list[int] = []
        pays = True
        for size in sizes:
            each = self._each(size)
            if each is None:
                if pays and size <= limit:
                    untried.append(size)
                continue
            pays = least is None or each <= least * (1 - SAVING)
            if pays:
                chosen, least = size, each
            elif least is not None and self._stale(size, each / least):
                return size
        return self._next(untried, first=least is None, smallest=sizes[0]) if untried else chosen

    def _next(self, untried: Sequence[int], *, first: bool, smallest: int) -> int:
        """Which size to try: one that was begun with; then the smallest, for nothing else says what others save."""
        begun = [size for size in untried if size > smallest and _class(size) in self._classes]
        if begun:
            return begun[-1]
        return smallest if smallest in untried and not first else untried[-1]

    def _each(self, rows: int) -> float | None:
        seconds = self.run(rows)
        return None if seconds is None else (seconds + OVERHEAD) / rows

    def _stale(self, rows: int, ratio: float) -> bool:
        return self._runs - self._classes[_class(rows)].last > REVISIT * ratio * ratio


def _class(rows: int) -> int:
    return (rows - 1).bit_length()
