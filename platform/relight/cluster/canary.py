"""Driving a canary: watch, decide, change the split, until it has everything or nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from relight.base.errors import BadInput, Conflict
from relight.cluster import traffic
from relight.cluster.samples import Samples
from relight.cluster.service import POLICY
from relight.cluster.waiting import SERVING
from relight.decide.canary import Decision, Policy, decide, read_policy

if TYPE_CHECKING:
    from relight.net.kube import Kube

LOOKS = 6
"""How often a step is looked at within its interval: a bad canary need not stay for all of it."""


def policy_of(service: Mapping[str, Any]) -> Policy:
    """The policy that the function was deployed with (relight.yaml, ``policy``), or the defaults."""
    text = (service["metadata"].get("annotations") or {}).get(POLICY)
    try:
        value = json.loads(text) if text else {}
    except ValueError:
        raise BadInput(f"annotation {POLICY} of {service['metadata']['name']} is not JSON: {text!r}") from None
    return read_policy({key: value[key] for key in ("slo", "canary") if key in value})


def drive(
    kube: Kube,
    name: str,
    namespace: str,
    samples: Samples,
    *,
    policy: Policy | None = None,
    on_decision: Callable[[Decision], None] = lambda decision: None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Decision:
    """Step the canary that is out until it is promoted or rolled back; the last decision.

    Conflict: there is none, or somebody else changed the split meanwhile: then nothing more is done.
    """
    service = kube.get(SERVING, "Service", name, namespace)
    policy = policy or policy_of(service)
    out = traffic.pair(service)
    if out is None:
        raise Conflict(f"{name} has no canary out: relight traffic {name} --canary PERCENT begins")
    while True:
        samples.begin((out.stable, out.canary))
        began = clock()
        while True:
            pause(policy.interval / LOOKS)
            seconds = clock() - began
            found = [samples.since(revision, seconds) for revision in (out.canary, out.stable)]
            decision = decide(policy, out.percent, found[0], found[1], seconds)
            now = traffic.pair(kube.get(SERVING, "Service", name, namespace))
            if now != out:
                raise Conflict(f"the traffic of {name} was changed by somebody else: the canary is left to them")
            on_decision(decision)
            if decision.verb != "wait":
                break
        if decision.verb == "promote":
            traffic.promote(kube, name, namespace)
            return decision
        if decision.verb == "rollback":
            traffic.rollback(kube, name, namespace)
            return decision
        out = traffic.give(kube, name, namespace, out.canary, decision.percent, out.tag)
