"""From a Revision object to what its replicas are started with, and what the data path holds its requests to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from relight.base.errors import BadInput, Problem
from relight.base.units import parse_duration
from relight.decide import slots
from relight.decide.admission import HoldLimits
from relight.decide.annotations import PROGRESS_DEADLINE
from relight.decide.defaults import duration, integer
from relight.local.kube.store import ObjectStore
from relight.local.serving import environment, objects
from relight.local.serving.probes import Probes
from relight.local.serving.sources import Source
from relight.local.serving.types import RevisionKey, RevisionLimits, RevisionSpec

Object = dict[str, Any]
HELD_REQUESTS = "relight.dev/max-held-requests"
"""Template annotation: requests that wait for a replica at most; more are answered 503 at once."""
HELD_FOR = "relight.dev/max-hold"
"""Template annotation: how long one waits at most (such as ``5s``), then it is answered 503; 0: as its timeouts say."""


def spec_of(
    revision: Object, source: Source, store: ObjectStore, environ: Mapping[str, str], progress_deadline: float
) -> RevisionSpec:
    """What it takes to start a replica. ``environ``: what every function is told; ``progress_deadline``: the cluster's,
    in seconds. BadInput or ValueError says what in the object cannot be."""
    meta, spec, labels = revision["metadata"], revision["spec"], objects.labels_of(revision)
    annotations, container = objects.annotations_of(revision), revision["spec"]["containers"][0]
    key = RevisionKey(meta["namespace"], meta["name"])
    service, configuration = labels.get(objects.SERVICE, ""), labels.get(objects.CONFIGURATION, "")
    deadline = annotations.get(PROGRESS_DEADLINE)
    env = {
        **environ,
        **environment.values(store, key.namespace, container),
        "K_SERVICE": service or configuration,
        "K_CONFIGURATION": configuration,
        "K_REVISION": key.name,
        "RELIGHT_NAMESPACE": key.namespace,
    }
    return RevisionSpec(
        key=key,
        uid=meta["uid"],
        service=service,
        configuration=configuration,
        source=str(source.path),
        env=env,
        preload=source.preload,
        backing=source.backing,
        limits=limits_of(revision),
        grace=_timeout(spec),
        progress_deadline=parse_duration(deadline) if deadline else progress_deadline,
        need=slots.requested(spec),
        use=slots.limited(spec),
        strategy=_strategy(annotations),
        probes=Probes.of(container),
    )


def hold_of(revision: Object) -> HoldLimits:
    """How many requests of a revision are held at most, and how long. BadInput says which annotations cannot be."""
    annotations, own = objects.annotations_of(revision), HoldLimits()
    problems: list[Problem] = []

    def read(name: str, parse: Callable[[str], float], default: float) -> float:
        try:
            value = parse(annotations[name]) if name in annotations else default
        except ValueError as error:
            problems.append(Problem(name, str(error)))
            return default
        if value < 0:
            problems.append(Problem(name, f"expected 0 or more, got {annotations[name]!r}"))
        return value

    limits = HoldLimits(
        max_requests=int(read(HELD_REQUESTS, integer, own.max_requests)),
        max_seconds=read(HELD_FOR, duration, own.max_seconds),
    )
    if problems:
        raise BadInput.of(problems)
    return limits


def limits_of(revision: Object) -> RevisionLimits:
    spec = revision["spec"]
    timeout = _timeout(spec)
    return RevisionLimits(
        container_concurrency=int(spec.get("containerConcurrency") or 0),
        timeout=timeout,
        response_start=float(spec.get("responseStartTimeoutSeconds") or timeout),
        idle=float(spec.get("idleTimeoutSeconds") or 0),
        h2c=objects.speaks_h2c(revision),
    )


def _timeout(spec: Mapping[str, Any]) -> float:
    return float(spec.get("timeoutSeconds") or 300)


def _strategy(annotations: Mapping[str, str]) -> str:
    given = annotations.get(slots.ROLLOUT, slots.STRATEGIES[0])
    if given not in slots.STRATEGIES:
        raise BadInput(f"{slots.ROLLOUT}: expected one of {', '.join(slots.STRATEGIES)}, got {given!r}")
    return given
