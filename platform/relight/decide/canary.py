"""Whether a new revision gets more of the traffic, all of it, or none: from what it and the old one answered.

A canary is stepped through shares of the traffic. At each step both revisions are watched; the canary is taken back as
soon as it is *certainly* worse, and goes on when enough requests say that it is not:

* errors: the share of failures that the canary has at least, with 95 % confidence (Wilson's lower bound), must not be
  above what is allowed: the SLO, or what the old revision itself has, if that is more;
* latency: the quantile of the SLO must not be above the SLO's bound nor above the old revision's times ``ratio``;
  both are looked at only when there were enough requests, for a quantile of a few says nothing.

No clock and no I/O here: the driver brings the observations, and does what is decided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from relight.base.errors import BadInput, Problem
from relight.base.units import parse_duration

Verb = Literal["wait", "step", "promote", "rollback"]
_Z = 1.96
"""95 % confidence, two-sided."""
FAILURES = 3
"""Failures before there were enough requests that take a canary back: one or two may be a cold start's."""


@dataclass(frozen=True)
class Policy:
    """``policy.canary`` and ``policy.slo`` of a function's relight.yaml."""

    steps: tuple[int, ...] = (10, 25, 50)
    """Shares of the traffic in percent, ascending; after the last one the canary is promoted."""
    interval: float = 60.0
    """Seconds that each step is watched at least."""
    min_requests: int = 50
    """Requests that the canary must have answered in a step before it may go on."""
    patience: float = 3600.0
    """Seconds after which a step that did not get its requests ends the canary: nobody called it, nothing is known."""
    error_rate: float = 0.01
    """Share of failures that is allowed, whatever the old revision has."""
    latency: float | None = None
    """Seconds that the quantile may take; None: only the old revision is the measure."""
    quantile: float = 0.95
    ratio: float = 1.3
    """How much slower than the old revision the canary may be."""


@dataclass(frozen=True)
class Sample:
    """What one revision answered in a step. ``buckets``: (upper bound in seconds, how many so far), ascending."""

    requests: int = 0
    failures: int = 0
    buckets: tuple[tuple[float, float], ...] = ()

    @property
    def error_rate(self) -> float:
        return self.failures / self.requests if self.requests else 0.0

    def quantile(self, share: float) -> float | None:
        """A quantile of the durations, as Prometheus reckons it: linear within a bucket; None: there were none."""
        total = self.buckets[-1][1] if self.buckets else 0.0
        if total <= 0:
            return None
        rank, low, before = share * total, 0.0, 0.0
        for bound, count in self.buckets:
            if count >= rank:
                if math.isinf(bound) or count <= before:
                    return low
                return low + (bound - low) * (rank - before) / (count - before)
            low, before = bound, count
        return low


@dataclass(frozen=True)
class Decision:
    """What to do, and why, in a sentence. ``percent``: the canary's share from now on."""

    verb: Verb
    percent: int
    reason: str


def decide(policy: Policy, percent: int, canary: Sample, stable: Sample, seconds: float) -> Decision:
    """One look at a step that has lasted ``seconds``, in which the canary has ``percent`` of the traffic."""
    allowed = max(policy.error_rate, stable.error_rate)
    least = lower_bound(canary.failures, canary.requests)
    enough = canary.requests >= policy.min_requests
    if least > allowed and (enough or canary.failures >= FAILURES):
        return Decision(
            "rollback",
            0,
            f"{canary.failures} of {canary.requests} requests failed: at least {least:.1%}, {allowed:.1%} is allowed"
            f" (the old revision: {stable.failures} of {stable.requests})",
        )
    if enough:
        slow = _too_slow(policy, canary, stable)
        if slow is not None:
            return Decision("rollback", 0, slow)
    if not enough and seconds >= policy.patience:
        return Decision(
            "rollback",
            0,
            f"{canary.requests} requests in {seconds:.0f} s, {policy.min_requests} were wanted: nothing is known of it",
        )
    if not enough or seconds < policy.interval:
        return Decision("wait", percent, f"{canary.requests} of {policy.min_requests} requests, {seconds:.0f} s")
    further = [step for step in policy.steps if step > percent]
    if further:
        return Decision("step", further[0], f"{_well(policy, canary)} at {percent} %")
    return Decision("promote", 100, f"{_well(policy, canary)} at {percent} %")


def lower_bound(failures: int, requests: int) -> float:
    """The share of failures that there is at least, with 95 % confidence (Wilson score interval)."""
    if requests == 0 or failures == 0:
        return 0.0
    share, z2 = failures / requests, _Z * _Z
    middle = share + z2 / (2 * requests)
    spread = _Z * math.sqrt(share * (1 - share) / requests + z2 / (4 * requests * requests))
    return max(0.0, (middle - spread) / (1 + z2 / requests))


def _too_slow(policy: Policy, canary: Sample, stable: Sample) -> str | None:
    taken = canary.quantile(policy.quantile)
    if taken is None:
        return None
    name = f"p{policy.quantile * 100:g}"
    if policy.latency is not None and taken > policy.latency:
        return f"{name} is {_ms(taken)}, and the SLO allows {_ms(policy.latency)}"
    before = stable.quantile(policy.quantile)
    if before is not None and stable.requests >= policy.min_requests and taken > before * policy.ratio:
        return f"{name} is {_ms(taken)}, more than {policy.ratio:g} times the old revision's {_ms(before)}"
    return None


def _well(policy: Policy, canary: Sample) -> str:
    taken = canary.quantile(policy.quantile)
    speed = f", p{policy.quantile * 100:g} {_ms(taken)}" if taken is not None else ""
    return f"{canary.failures} of {canary.requests} failed{speed}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def read_policy(value: Mapping[str, Any]) -> Policy:
    """The policy in ``policy`` of a relight.yaml. BadInput names every mistake by field path."""
    problems: list[Problem] = []
    slo, canary = (_mapping(value, name, problems) for name in ("slo", "canary"))
    given: dict[str, Any] = {}

    def take(source: Mapping[str, Any], where: str, key: str, field: str, read: Any, expected: str) -> None:
        if key in source:
            try:
                given[field] = read(source[key])
            except (ValueError, TypeError):
                problems.append(Problem(f"policy.{where}.{key}", f"expected {expected}, got {source[key]!r}"))

    take(slo, "slo", "errorRate", "error_rate", _share, "a share such as 0.01")
    take(slo, "slo", "latency", "latency", _seconds, "a duration such as 500ms")
    take(slo, "slo", "quantile", "quantile", _share, "a share such as 0.95")
    take(canary, "canary", "steps", "steps", _steps, "ascending percents such as [10, 25, 50]")
    take(canary, "canary", "interval", "interval", _seconds, "a duration such as 60s")
    take(canary, "canary", "patience", "patience", _seconds, "a duration such as 1h")
    take(canary, "canary", "minRequests", "min_requests", _count, "a whole number above 0")
    take(canary, "canary", "latencyRatio", "ratio", _ratio, "a number of at least 1")
    for source, where, known in (
        (slo, "slo", {"errorRate", "latency", "quantile"}),
        (canary, "canary", {"steps", "interval", "patience", "minRequests", "latencyRatio"}),
    ):
        problems += (
            Problem(f"policy.{where}.{key}", f"unknown key; expected {', '.join(sorted(known))}")
            for key in source.keys() - known
        )
    if problems:
        raise BadInput.of(problems)
    return Policy(**given)


def _mapping(value: Mapping[str, Any], name: str, problems: list[Problem]) -> Mapping[str, Any]:
    found = value.get(name) or {}
    if isinstance(found, Mapping):
        return found
    problems.append(Problem(f"policy.{name}", "expected a mapping"))
    return {}


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(value)
    return float(value)


def _share(value: object) -> float:
    number = _number(value)
    if not 0 < number < 1:
        raise ValueError(value)
    return number


def _ratio(value: object) -> float:
    number = _number(value)
    if number < 1:
        raise ValueError(value)
    return number


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(value)
    return value


def _seconds(value: object) -> float:
    seconds = parse_duration(value) if isinstance(value, str) else _number(value)
    if seconds <= 0:
        raise ValueError(value)
    return seconds


def _steps(value: object) -> tuple[int, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise ValueError(value)
    steps = tuple(_count(step) for step in value)
    if list(steps) != sorted(set(steps)) or steps[-1] > 99:
        raise ValueError(value)
    return steps
