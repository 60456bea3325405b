"""Gradual rollout: how the share of a configuration moves from its old revisions to its latest one, over time.

A new revision begins with one percent, taken from the newest of the others; the rest follows in equal steps, spread
over the duration, from the oldest on. A revision that comes while a rollout is under way begins in the same way, and
what it meets is rolled out along with it. This is what Knative does with ``serving.knative.dev/rollout-duration``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

FIRST_STEP = 1
"""Percent that a new revision begins with."""


@dataclass(frozen=True)
class Rollout:
    """The state of one line of a route's traffic. Times in seconds of the clock that ``now`` is of."""

    shares: tuple[tuple[str, int], ...]
    """(revision, percent of the route's traffic), oldest first; they add up to the line's percent."""
    step: int = 0
    """Percent moved with each step; 0: nothing is under way."""
    every: float = 0.0
    """Seconds between two steps."""
    next_at: float = 0.0

    @property
    def done(self) -> bool:
        return len(self.shares) == 1


def advance(before: Rollout | None, latest: str, percent: int, duration: float, now: float) -> Rollout:
    """The shares at ``now`` of a line that gives ``percent`` to a configuration whose ready revision is ``latest``.

    ``before`` is the state as it was; None where there is none (then there is nothing to roll out from).
    """
    if before is None or not before.shares or duration <= 0 or percent <= FIRST_STEP:
        return Rollout(((latest, percent),))
    state = _resized(before, percent)
    if state.shares[-1][0] != latest:
        return _begun(state, latest, percent, duration, now)
    steps = 0 if state.done else math.floor((now - state.next_at) / state.every) + 1 if now >= state.next_at else 0
    if steps:
        state = replace(_moved(state, state.step * steps), next_at=state.next_at + steps * state.every)
    return state


def _resized(state: Rollout, percent: int) -> Rollout:
    """Another percent for the whole line: more goes to the newest, less is taken from the oldest."""
    shares = list(state.shares)
    missing = percent - sum(share for _, share in shares)
    if missing > 0:
        shares[-1] = (shares[-1][0], shares[-1][1] + missing)
    while missing < 0 and shares:
        name, share = shares[0]
        taken = min(share, -missing)
        missing += taken
        if share > taken or len(shares) == 1:
            shares[0] = (name, share - taken)
        else:
            del shares[0]
    return replace(state, shares=tuple(shares))


def _begun(state: Rollout, latest: str, percent: int, duration: float, now: float) -> Rollout:
    shares = {name: share for name, share in state.shares if share > 0}
    first = shares.pop(latest, 0)  # it may have a share already, as an older one: then that is where it begins
    if not first:
        first = FIRST_STEP
        shares[next(reversed(shares))] -= FIRST_STEP
    kept = tuple((name, share) for name, share in shares.items() if share > 0)
    if not kept:
        return Rollout(((latest, percent),))
    # A step takes at least a second and moves at least one percent.
    left = percent - first
    step = max(1, math.ceil(left / max(1.0, duration)))
    every = duration / math.ceil(left / step)
    return Rollout((*kept, (latest, first)), step, every, now + every)


def _moved(state: Rollout, percent: int) -> Rollout:
    shares, left = list(state.shares), percent
    latest, share = shares.pop()
    while shares and left > 0:
        name, has = shares[0]
        taken = min(has, left)
        left -= taken
        share += taken
        if has > taken:
            shares[0] = (name, has - taken)
        else:
            del shares[0]
    return replace(state, shares=(*shares, (latest, share)))
