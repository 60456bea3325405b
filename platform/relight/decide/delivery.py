"""When a delivery is tried again, after how long, and what a dead letter says.

Rules of Knative's ``DeliverySpec`` (knative/eventing ``pkg/kncloudevents/retries.go``): attempts count from 0, so an
exponential policy waits ``delay``, ``2 * delay``, ``4 * delay``…, and a linear one nothing before the first retry.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from relight.base.errors import BadInput, Problem
from relight.base.units import parse_iso_duration
from relight.wire.cloudevents import Event

TTL = "knativebrokerttl"
"""The extension that counts down how often an event may still go through a broker."""
DEFAULT_TTL = 255
LONGEST_WAIT = 3600.0
"""Seconds between two attempts at most. Knative has no bound: retry 30 would wait 6 years."""
ERROR_BYTES = 1024
"""How much of a failed answer a dead letter carries (Knative's bound)."""


@dataclass(frozen=True)
class Retry:
    """How often and when a delivery is tried again. Defaults are those of Knative's shipped broker."""

    retries: int = 10
    """Attempts after the first one."""
    policy: Literal["linear", "exponential"] = "exponential"
    delay: float = 0.2
    """Seconds; the unit of the policy."""
    timeout: float | None = None
    """Seconds one attempt may take; None: the dispatcher's own limit."""
    retry_after_max: float | None = None
    """Seconds that a Retry-After may ask for; None: Retry-After is not looked at (Knative's rule)."""
    structured: bool = False
    """Deliver in structured mode (``format: json``) rather than binary."""
    longest: float = LONGEST_WAIT
    """Seconds between two attempts at most."""

    @classmethod
    def of(cls, *specs: Mapping[str, Any] | None, path: str = "spec.delivery") -> Retry:
        """From a Trigger's ``spec.delivery``, then its Broker's: each field from the first that has it, or a default.

        BadInput names every wrong field. (Knative takes one of the two as a whole, and no retries at all where the
        Trigger has a delivery without ``retry``.)
        """
        given: dict[str, Any] = {}
        for spec in reversed(specs):
            given |= {name: value for name, value in (spec or {}).items() if value is not None}
        problems: list[Problem] = []
        fields: dict[str, Any] = {}
        retries = given.get("retry")
        if retries is not None:
            if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
                problems.append(Problem(f"{path}.retry", f"an integer from 0 was expected, got {retries!r}"))
            fields["retries"] = retries
        if "backoffPolicy" in given:
            if given["backoffPolicy"] not in ("linear", "exponential"):
                what = f"linear or exponential was expected, got {given['backoffPolicy']!r}"
                problems.append(Problem(f"{path}.backoffPolicy", what))
            fields["policy"] = given["backoffPolicy"]
        if "format" in given:
            if given["format"] not in ("json", "binary"):
                problems.append(Problem(f"{path}.format", f"json or binary was expected, got {given['format']!r}"))
            fields["structured"] = given["format"] == "json"
        durations = {"backoffDelay": "delay", "timeout": "timeout", "retryAfterMax": "retry_after_max"}
        for name, field in durations.items():
            if name not in given:
                continue
            try:
                fields[field] = parse_iso_duration(str(given[name]))
            except ValueError as error:
                problems.append(Problem(f"{path}.{name}", str(error)))
        if fields.get("timeout") == 0:
            problems.append(Problem(f"{path}.timeout", "a duration longer than zero was expected"))
        if problems:
            raise BadInput.of(problems)
        return cls(**fields)


def should_retry(status: int | None) -> bool:
    """Whether another attempt may help; ``status`` None (or below 0): there was no answer."""
    return status is None or status < 0 or status >= 500 or status in (404, 408, 409, 429)


def backoff(policy: Retry, attempt: int) -> float:
    """Seconds to wait after the failure of attempt ``attempt`` (0 is the first)."""
    if policy.policy == "linear":
        return min(policy.longest, policy.delay * attempt)
    return min(policy.longest, policy.delay * 2.0 ** min(attempt, 64))


def jittered(seconds: float, random01: float) -> float:
    """A wait made up to a fifth longer, so that what failed together does not come back together; never shorter."""
    return seconds * (1.0 + 0.2 * random01)


def wait(policy: Retry, attempt: int, status: int | None, retry_after: str | None, now: float) -> float:
    """Seconds until the next attempt: the backoff, or what a 429 or 503 asked for if that is longer and allowed.

    ``now`` is in seconds since 1970, for a Retry-After that is a date.
    """
    least = backoff(policy, attempt)
    if not policy.retry_after_max or status not in (429, 503) or not retry_after:
        return least
    asked = _seconds(retry_after.strip(), now)
    return least if asked is None else max(least, min(asked, policy.retry_after_max))


def _seconds(retry_after: str, now: float) -> float | None:
    if retry_after.isdecimal() and retry_after.isascii():
        return float(retry_after)
    try:
        moment = datetime.strptime(retry_after, "%a, %d %b %Y %H:%M:%S GMT").replace(tzinfo=UTC)
    except ValueError:
        return None
    return max(0.0, moment.timestamp() - now)


def next_ttl(value: object) -> int:
    """How often an event may still go through a broker after it went through this one; 0: it must not be accepted.

    An event without a TTL, or with one that is no number, starts at the default.
    """
    try:
        return max(0, int(str(value)) - 1)
    except ValueError:
        return DEFAULT_TTL


def dead_letter(event: Event, destination: str, status: int | None, data: bytes) -> Event:
    """The event as its dead-letter sink gets it: where it could not go, the last status, and what was answered.

    The answer is bounded and in Base64, for an attribute cannot hold lines or arbitrary bytes.
    """
    return event.replace(
        knativeerrordest=destination,
        knativeerrorcode=status,
        knativeerrordata=base64.b64encode(data[:ERROR_BYTES]).decode(),
    )
