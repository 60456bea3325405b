"""From the number that the load wants to the number that is applied, and all that concerns zero.

A revision is *activating*, *active* or *inactive*. Going to zero takes two steps, because on a cluster it takes time
until all traffic is routed to the activator, and a replica that goes before that takes requests with it:

1. Active for at least the stable window (so that a revision that just came up is not taken down at once), and nobody
   calls: it is marked inactive. Its replica stays, the activator is put into the path.
2. Inactive: the replica goes once the activator is in the path for sure. That is certain after the grace period; when
   the activator has been in the path for so long already (it is wherever few replicas serve), there is nothing to wait
   for, and the replica goes at once. A retention period, where set, is waited for in any case.

A revision that is activating is left alone until its replica had the progress deadline and 30 s more to come up; then
it is given up, which is how a broken function ends at zero and not in a loop.

Better than Knative's, where the caller says what the machine can hold (``ScaleTarget.slots``): no more replicas are
started than fit, so that none is left pending; the revision still *wants* them, and its requests queue.

What follows, as a table (``minimum``: replicas that count as active, see ``active_threshold``):

====== ============== ========= ============ ============
want   ready          minimum   was          becomes
====== ============== ========= ============ ============
0      any            any       any          inactive
> 0    below minimum  any       any          activating
> 0    minimum        any       any          active
-1     any            0         any          inactive
-1     any            > 0       inactive     inactive
-1     below minimum  > 0       other        activating
-1     minimum        > 0       other        active
====== ============== ========= ============ ============
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from relight.decide.scaling import RevisionScaling

UNKNOWN = -1
"""A wish that nobody has: no numbers have come in yet. What is there stays."""
ACTIVATION_BUFFER = 30.0
"""Seconds that a replica gets beyond its progress deadline before its revision is given up."""
RECHECK = 3.0
"""Seconds after which a revision that was just marked inactive is looked at again."""


class Activity(enum.Enum):
    """The condition ``Active`` of a PodAutoscaler: Unknown, True, False."""

    ACTIVATING = "activating"
    ACTIVE = "active"
    INACTIVE = "inactive"


@dataclass(frozen=True)
class ScaleTarget:
    """A revision's replicas as the last step sees them. Times in seconds of the clock that ``now`` is of."""

    replicas: int
    """The number that was applied last."""
    ready: int
    activity: Activity
    since: float
    """When ``activity`` became what it is."""
    initialized: bool = True
    """Its initial scale has been reached once."""
    reachable: bool = True
    """A route leads to it, or nobody knows; only where certainly none does this is False."""
    proxy_since: float | None = None
    """Since when the activator is in the path; None: it is not."""
    activator_in_path: bool = True
    """A probe through the ingress met the activator. Not looked at with a burst capacity of -1: it always is there."""
    slots: int | None = None
    """Replicas of this revision that the machine can hold, those it has included; None: no limit."""


@dataclass(frozen=True)
class Step:
    """What to do now."""

    want: int
    """Replicas wanted; -1: unknown, and nothing is done."""
    scale: int | None
    """Set the number of replicas to this; None: leave it."""
    requeue_after: float | None
    """Look again after so many seconds, for what is waited for is time; None: only when something changes."""
    activity: Activity
    initialized: bool
    reason: str
    """Why, in a word or two, for logs and conditions."""


def last_step(spec: RevisionScaling, target: ScaleTarget, desired: int, now: float) -> Step:
    """Bounds, then zero, then the new activity."""
    want, apply, requeue, reason = _scale(spec, target, desired, now)
    minimum = active_threshold(spec, target)
    fits = want if target.slots is None else min(want, max(target.slots, target.replicas))
    return Step(
        want=want,
        scale=fits if apply and fits != target.replicas else None,
        requeue_after=requeue,
        activity=activity(want, target.ready, minimum, target.activity),
        initialized=target.initialized or target.ready >= minimum,
        reason=reason,
    )


def bounds(spec: RevisionScaling, target: ScaleTarget) -> tuple[int, int]:
    """(min, max) replicas; max 0: none. Nothing is kept for a revision that no route leads to."""
    low = spec.min_scale if target.reachable else 0
    if spec.initial_scale > 1 and not target.initialized:
        low = max(low, spec.initial_scale)
    return low, spec.max_scale


def active_threshold(spec: RevisionScaling, target: ScaleTarget) -> int:
    """Ready replicas that make a revision active. 0 only for a new one whose initial scale is 0."""
    low = spec.min_scale if target.reachable else 0
    return max(low, 1 if target.initialized else spec.initial_scale)


def activity(want: int, ready: int, minimum: int, was: Activity) -> Activity:
    """The table above."""
    if want == 0 or (want < 0 and minimum == 0):
        return Activity.INACTIVE
    if want < 0 and was is Activity.INACTIVE:
        return Activity.INACTIVE
    return Activity.ACTIVE if ready >= minimum else Activity.ACTIVATING


def proxied(want: int, excess_burst_capacity: int, state: Activity) -> bool:
    """Whether requests go through the activator rather than straight to replicas."""
    return want == 0 or excess_burst_capacity < 0 or (want < 0 and state is Activity.INACTIVE)


def _scale(spec: RevisionScaling, target: ScaleTarget, desired: int, now: float) -> tuple[int, bool, float | None, str]:
    if desired < 0 and target.activity is not Activity.ACTIVATING:
        return UNKNOWN, False, None, "no metrics yet"
    low, high = bounds(spec, target)
    want = low if desired < low else high if high and desired > high else desired
    if want != 0:
        return want, True, None, "load" if want == desired else "bounds"
    if not spec.enable_scale_to_zero:
        return 1, True, None, "scale to zero is off"
    return _to_zero(spec, target, now)


def _to_zero(spec: RevisionScaling, target: ScaleTarget, now: float) -> tuple[int, bool, float | None, str]:
    lasted = now - target.since
    if target.activity is Activity.ACTIVATING:
        deadline = spec.progress_deadline + ACTIVATION_BUFFER
        if lasted > deadline:
            return 0, True, None, "activation timed out"
        return UNKNOWN, False, deadline - lasted, "activating"
    if target.activity is Activity.ACTIVE:
        if lasted < spec.stable_window:
            return 1, True, spec.stable_window - lasted, "active for less than the stable window"
        return 0, False, RECHECK if target.proxy_since is not None else None, "idle"
    if spec.target_burst_capacity != -1 and not target.activator_in_path:
        return 0, False, None, "activator not in the path"
    retention = spec.retention if target.reachable else 0.0
    if lasted >= max(spec.grace_period, retention):
        return 0, True, None, "inactive for the grace period"
    if lasted < retention:
        return 0, False, retention - lasted, "retention period"
    proxy = 0.0 if target.proxy_since is None else now - target.proxy_since
    if proxy >= spec.grace_period:
        return 0, True, None, "activator in the path for the grace period"
    return 0, False, spec.grace_period - proxy, "grace period"
