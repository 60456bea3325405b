"""Which of a configuration's old revisions may go: Knative's garbage collection, as a function.

A revision is *active* while a route leads to it, while it is the configuration's latest ready one, while it has not yet
been routed to at all, and while its annotation ``serving.knative.dev/no-gc`` says so. Of the others, oldest first,
those go that were made, and were last active, long enough ago, as long as more than a minimum remain; then, whatever
their age, those beyond a maximum.

Names and defaults are those of the ConfigMap ``config-gc``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from relight.base.errors import BadInput, Problem
from relight.decide.defaults import duration, integer

DISABLED = "disabled"
_CREATED, _ACTIVE = "retain-since-create-time", "retain-since-last-active-time"
_MIN, _MAX = "min-non-active-revisions", "max-non-active-revisions"


@dataclass(frozen=True)
class Retention:
    """How long, and how many. Seconds; None (``disabled``): this rule takes nothing away."""

    since_created: float | None = 48 * 3600.0
    since_active: float | None = 15 * 3600.0
    min_inactive: int = 20
    """So many that are not active stay, however old."""
    max_inactive: int | None = 1000
    """No more than so many that are not active stay, however new."""

    @classmethod
    def from_config(cls, data: Mapping[str, str]) -> Retention:
        """Read the ``data`` of a ``config-gc``. BadInput names every wrong key at once."""
        problems: list[Problem] = []

        def read(key: str, parse: Callable[[str], float], default: float | None, *, optional: bool) -> float | None:
            text = data.get(key)
            if text is None:
                return default
            if optional and text == DISABLED:
                return None
            try:
                value = parse(text)
                if value < 0:
                    raise ValueError(f"expected 0 or more, got {text!r}")
            except ValueError as error:
                problems.append(Problem(key, str(error)))
                return default
            return value

        own = cls()
        created = read(_CREATED, duration, own.since_created, optional=True)
        active = read(_ACTIVE, duration, own.since_active, optional=True)
        least = int(read(_MIN, integer, own.min_inactive, optional=False) or 0)
        read_most = read(_MAX, integer, own.max_inactive, optional=True)
        most = None if read_most is None else int(read_most)
        if most is not None and least > most:
            problems.append(Problem(_MIN, f"expected at most {_MAX} ({most}), got {least}"))
        if problems:
            raise BadInput.of(problems)
        return cls(created, active, least, most)


@dataclass(frozen=True)
class Candidate:
    """A revision as the collection sees it. Times in seconds of the clock that ``now`` is of."""

    name: str
    created: float
    last_active: float
    """When its routing state last changed; when it was made, if it never did."""
    active: bool


def collect(rules: Retention, revisions: Iterable[Candidate], now: float) -> list[str]:
    """Names of the revisions that may go, oldest first."""
    inactive = sorted((one for one in revisions if not one.active), key=lambda one: (one.last_active, one.name))
    gone: list[str] = []
    fresh: list[Candidate] = []
    for one in inactive:
        if len(inactive) - len(gone) > rules.min_inactive and _stale(rules, one, now):
            gone.append(one.name)
        else:
            fresh.append(one)
    if rules.max_inactive is not None:
        gone += [one.name for one in fresh[: max(0, len(fresh) - rules.max_inactive)]]
    return gone


def _stale(rules: Retention, one: Candidate, now: float) -> bool:
    if rules.since_created is None and rules.since_active is None:
        return False
    old = rules.since_created is None or now - one.created >= rules.since_created
    unused = rules.since_active is None or now - one.last_active >= rules.since_active
    return old and unused
