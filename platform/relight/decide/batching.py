"""Dynamic batching: which of the waiting requests are computed together, and when to look again.

A batch is a bus, not a chain gang. A run begins with the first in the queue and takes along those that may ride with it
(equal parameters, equal shapes), up to the size that pays. A request that finds an instance idle leaves at once; nobody
waits for company unless the settings allow a wait, others come faster than a run takes, and larger runs are known to
pay. The wait is counted from the first arrival.

Field names and meanings of the settings are those of ``dynamic_batching`` in Triton's ``model_config.proto``; times are
in seconds here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from relight.base.errors import BadInput, Problem
from relight.decide.costs import Costs

DEARER = 1.25
"""How much more a row may cost in a run on each of the idle instances than in one run of all while the others rest."""
SPARSE = 3.0
"""Expected gaps between arrivals without an arrival after which a wait for company is given up."""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """What a queue does with those that wait too long, and how many may wait."""

    timeout_action: Literal["reject", "delay"] = "reject"
    """At the end of ``default_timeout``: refuse (504), or compute only when nothing else waits."""
    default_timeout: float = 0.0
    """Seconds that a request may wait in the queue; 0: as long as it takes."""
    allow_timeout_override: bool = True
    """Whether a request's own ``timeout`` counts. It may only shorten ``default_timeout``, where there is one."""
    max_queue_size: int = 0
    """Requests that may wait; 0: only the process's own bound holds."""


@dataclass(frozen=True)
class BatchingSettings:
    """How requests for one model are batched."""

    max_batch_size: int
    """Rows of one run, never exceeded; a request of more is split."""
    preferred_batch_sizes: tuple[int, ...] = ()
    """Sizes to choose from, where the rows that wait allow it. Empty: any."""
    max_queue_delay: float = 0.0
    """Seconds that a request may wait for company, from its arrival; 0: nobody waits while an instance is idle."""
    queue_policy: QueuePolicy = QueuePolicy()
    queue_policies: Mapping[int, QueuePolicy] = field(default_factory=dict)
    """By priority level, where it differs from ``queue_policy``."""
    priority_levels: int = 0
    """Levels of priority, 1 the highest; 0: all requests are equal."""
    default_priority_level: int = 0
    """The level of requests that name none."""
    preserve_ordering: bool = False
    """Whether answers leave in the order in which their requests came."""
    ragged: Mapping[str, float] = field(default_factory=dict)
    """Inputs whose further dimensions may differ within a run, and the value that the shorter are padded with.
    Outputs must then depend neither on the padding nor, in their shape, on the padded length."""

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise BadInput.of(problems)

    def _problems(self) -> Iterator[Problem]:
        cap = self.max_batch_size
        if cap < 1:
            yield Problem("max_batch_size", f"expected at least 1 where requests are batched, got {cap}")
        for size in self.preferred_batch_sizes:
            if not 1 <= size <= cap:
                yield Problem("preferred_batch_size", f"{size} is not from 1 to max_batch_size, which is {cap}")
        if self.max_queue_delay < 0:
            yield Problem("max_queue_delay", f"expected no less than 0, got {self.max_queue_delay}")
        levels = self.priority_levels
        if levels and not 1 <= self.default_priority_level <= levels:
            message = f"expected a level from 1 to priority_levels, {levels}, got {self.default_priority_level}"
            yield Problem("default_priority_level", message)
        for level in self.queue_policies:
            if not 1 <= level <= levels:
                yield Problem(f"priority_queue_policy[{level}]", f"there are {levels} priority levels")

    def level(self, asked: int) -> int:
        """The level of a request that asks for one: 0, and what is beyond the last, means the default, as in Triton."""
        return asked if 1 <= asked <= self.priority_levels else self.default_priority_level

    def policy(self, level: int) -> QueuePolicy:
        return self.queue_policies.get(level, self.queue_policy)

    def own_deadline(self, level: int) -> bool:
        """Whether a request of this level that names a timeout is refused at its end, wherever it is by then."""
        policy = self.policy(level)
        return policy.allow_timeout_override and policy.timeout_action == "reject"

    def patience(self, level: int, asked: float) -> float:
        """Seconds that a request of this level may wait which asks for ``asked`` (0: for none); 0: for ever."""
        policy = self.policy(level)
        if asked <= 0 or not policy.allow_timeout_override:
            return policy.default_timeout
        return min(asked, policy.default_timeout) if policy.default_timeout > 0 else asked


@dataclass(slots=True, eq=False)
class Passenger:
    """One that waits: a request, or a part of one that is larger than a run may be."""

    rows: int
    group: Hashable | None
    """Equal for those that may ride together; None rides alone."""
    arrived: float
    expires: float | None = None
    """When it must have left the queue."""
    level: int = 0
    weight: int = 0
    """The class of its rows' size: costs are learned for each class on its own."""


P = TypeVar("P", bound=Passenger)


@dataclass(frozen=True, slots=True)
class Decision(Generic[P]):
    """What to do now. ``batches`` are at most as many as instances are idle; whoever is in neither goes on waiting."""

    batches: tuple[tuple[P, ...], ...] = ()
    expired: tuple[P, ...] = ()
    look_again: float | None = None
    """When something changes though nobody comes and no run ends; None: never."""


def parts(rows: int, cap: int) -> list[int]:
    """The rows of the runs that a request is split into: as few as possible, all full but the last."""
    return [min(cap, rows - at) for at in range(0, rows, cap)] if rows > cap else [rows]


def decide(
    waiting: Sequence[P],
    idle: int,
    settings: BatchingSettings,
    costs: Mapping[int, Costs],
    gap: float | None,
    now: float,
) -> Decision[P]:
    """Whom to compute together on ``idle`` instances.

    ``waiting`` is in the order of arrival. ``costs`` by weight is what was learned, ``gap`` the seconds that usually
    lie between two arrivals (None: not known).
    """
    queue, expired, soonest = _sorted_out(waiting, settings, now)
    batches: list[tuple[P, ...]] = []
    held: list[float] = []
    while queue and idle > len(batches):
        head = queue[0]
        mates = _mates(queue, head, settings.max_batch_size)
        learned = costs.get(head.weight) or Costs()
        rows = sum(mate.rows for mate in mates)
        until = _hold(mates, rows, settings, learned, gap, now)
        if until is not None:
            held.append(until)
            queue = [one for one in queue if one.group != head.group]
            continue
        free = idle - len(batches)
        share = rows if free == 1 else _share(_waiting(queue, head), rows, free, learned)
        batch = _filled(mates, _size(share, settings, learned))
        batches.append(tuple(batch))
        if len(batch) == len(queue):
            queue = []
        else:
            gone = set(map(id, batch))
            queue = [one for one in queue if id(one) not in gone]
    if soonest is not None:
        held.append(soonest)
    return Decision(tuple(batches), expired, min(held, default=None))


def _sorted_out(
    waiting: Sequence[P], settings: BatchingSettings, now: float
) -> tuple[list[P], tuple[P, ...], float | None]:
    """Those that may go, the most urgent first; those that have waited too long; when the next one will have."""
    expired: list[P] = []
    late: list[P] = []
    queue: list[P] = []
    soonest: float | None = None
    for one in waiting:
        if one.expires is None:
            queue.append(one)
        elif one.expires > now:
            queue.append(one)
            soonest = one.expires if soonest is None else min(soonest, one.expires)
        elif settings.policy(one.level).timeout_action == "delay":
            late.append(one)
        else:
            expired.append(one)
    if settings.priority_levels:
        queue.sort(key=_level)
        late.sort(key=_level)
    return queue + late, tuple(expired), soonest


def _level(passenger: Passenger) -> int:
    return passenger.level


def _mates(queue: Sequence[P], head: P, cap: int) -> list[P]:
    """``head`` and those behind it that may ride with it, as many as have room. Nobody overtakes one of its group."""
    if head.group is None:
        return [head]
    mates: list[P] = []
    rows = 0
    for one in queue:
        if one.group == head.group:
            if rows + one.rows > cap and mates:
                break
            mates.append(one)
            rows += one.rows
    return mates


def _filled(mates: Sequence[P], size: int) -> list[P]:
    taken, rows = [mates[0]], mates[0].rows
    for one in mates[1:]:
        rows += one.rows
        if rows > size:
            break
        taken.append(one)
    return taken


def _waiting(queue: Sequence[P], head: P) -> int:
    """Rows that wait and may ride with ``head``."""
    return head.rows if head.group is None else sum(one.rows for one in queue if one.group == head.group)


def _share(waiting: int, rows: int, idle: int, costs: Costs) -> int:
    """Rows, of ``rows`` that could go at once, for one of several idle instances.

    Side by side, rows are done sooner, unless a run of fewer takes hardly less time. Where that is not known, all go.
    """
    share = -(-waiting // idle)
    if share >= rows:
        return rows
    together, apart = costs.run(rows), costs.run(share)
    if together is None or apart is None or apart / share > together / rows * DEARER:
        return rows
    return share


def _size(rows: int, settings: BatchingSettings, costs: Costs) -> int:
    """Rows of the run when so many could go."""
    if rows <= 1:
        return rows
    preferred = sorted(size for size in settings.preferred_batch_sizes if 1 < size <= rows)
    return costs.best([1, *preferred] if preferred else [*_ladder(rows), rows])


def _ladder(rows: int) -> Iterator[int]:
    size = 1
    while size < rows:
        yield size
        size *= 2


def _hold(
    mates: Sequence[Passenger],
    rows: int,
    settings: BatchingSettings,
    costs: Costs,
    gap: float | None,
    now: float,
) -> float | None:
    """Until when those who could go wait for company; None: they go.

    With ``c(n)`` the seconds of a run of n rows: leaving now, the n rows are done after ``c(n)``, and one more row,
    which comes after ``gap``, after ``c(n) + c(1)``. Waiting for it, all are done after ``gap + c(n + 1)``. The wait
    pays if the sum over all rows is less.
    """
    if settings.max_queue_delay <= 0 or gap is None or mates[0].group is None:
        return None
    until = min(mates[0].arrived + settings.max_queue_delay, mates[-1].arrived + SPARSE * gap)
    full = max((size for size in settings.preferred_batch_sizes), default=settings.max_batch_size)
    if until <= now or rows >= full:
        return None
    one, all_now, with_one_more = costs.run(1), costs.run(rows), costs.run(rows + 1)
    if one is None or all_now is None or with_one_more is None:
        return None
    return until if gap + with_one_more < all_now + one / (rows + 1) else None
