"""Waiting until a Service is ready, by watching it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from typing import Any, cast

from relight.base.errors import Deadline, Forbidden, LoadFailed, NotFound
from relight.cluster.reasons import why_waiting
from relight.net.kube import Gone, Kube

SERVING = "serving.knative.dev/v1"
REVISION_LABEL = "serving.knative.dev/revision"
LOOK = 5.0
"""Seconds after which the pods are looked at again: what they wait for changes without a change of the Service."""


def wait_ready(
    kube: Kube,
    service: Mapping[str, Any],
    timeout: float,
    on_progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """The Service once the generation that ``service`` has (or a newer one) is ready.

    LoadFailed: it never will be; the condition's reason and message say why. Deadline: not within ``timeout`` seconds,
    with what it was waiting for. NotFound: it was deleted meanwhile.
    """
    meta = service["metadata"]
    name, namespace, generation = meta["name"], meta["namespace"], int(meta.get("generation", 0))
    deadline = time.monotonic() + timeout
    text = "nothing was heard of it"
    while (left := deadline - time.monotonic()) > 0:
        # Servers end watches when they like: each turn looks anew, and misses nothing.
        value = kube.get(SERVING, "Service", name, namespace)
        state, text = readiness(value, generation)
        if state != "Unknown":
            return _settled(name, value, state, text)
        text = _of_pods(kube, value) or text
        on_progress(f"{name}: {text}")
        settled = _watch(kube, value, generation, min(left, LOOK), on_progress)
        if settled is not None:
            return settled
    raise Deadline(f"{name} was not ready after {timeout:g} s: {text}")


def _watch(
    kube: Kube, service: Mapping[str, Any], generation: int, timeout: float, on_progress: Callable[[str], None]
) -> dict[str, Any] | None:
    """The Service once it is settled; None where the watch ended before."""
    meta = service["metadata"]
    name = meta["name"]
    changes = kube.watch(
        SERVING, "Service", meta["namespace"], name=name, since=meta["resourceVersion"], timeout=timeout
    )
    # Closed here and not when it is collected: the traceback of an error would keep its connection open.
    with closing(cast("Generator[tuple[str, dict[str, Any]], None, None]", changes)):
        try:
            for kind, value in changes:
                if kind == "DELETED":
                    raise NotFound(f"service {name} was deleted while it was waited for")
                state, text = readiness(value, generation)
                if state != "Unknown":
                    return _settled(name, value, state, text)
                on_progress(f"{name}: {_of_pods(kube, value) or text}")
        except Gone:
            return None
    return None


def _of_pods(kube: Kube, service: Mapping[str, Any]) -> str | None:
    """What the newest revision's pods wait for; None where that is not known."""
    revision = (service.get("status") or {}).get("latestCreatedRevisionName")
    if not revision:
        return None
    namespace = service["metadata"]["namespace"]
    try:
        pods = kube.list("v1", "Pod", namespace, labels=f"{REVISION_LABEL}={revision}")
        return why_waiting(pods["items"]) or _of_room(kube.get(SERVING, "Revision", revision, namespace))
    except (Forbidden, NotFound):
        return None  # whoever may deploy need not be one who may look at these


def _of_room(revision: Mapping[str, Any]) -> str | None:
    """What a revision without pods waits for, since when: local mode makes none where there is no room."""
    for one in (revision.get("status") or {}).get("conditions") or ():
        if one.get("type") == "ResourcesAvailable" and one.get("reason") == "Unschedulable":
            return f"unschedulable since {one.get('lastTransitionTime')}: {one.get('message')}"
    return None


def readiness(service: Mapping[str, Any], generation: int) -> tuple[str, str]:
    """The Ready condition of a generation of a Service: its status, and its reason and message in one text."""
    status = service.get("status") or {}
    if status.get("observedGeneration", 0) < generation:
        return "Unknown", "waiting for the controller"
    conditions: dict[str, Mapping[str, str]] = {str(one.get("type")): one for one in status.get("conditions") or ()}
    ready = conditions.get("Ready", {})
    told = ready
    if ready.get("status") == "False" and conditions.get("ConfigurationsReady", {}).get("status") == "False":
        told = conditions["ConfigurationsReady"]  # Ready has the Route's word then, which only says that it has nothing
    text = ": ".join(part for part in (told.get("reason"), told.get("message")) if part)
    return ready.get("status", "Unknown"), text or "starting"


def _settled(name: str, service: Mapping[str, Any], state: str, text: str) -> dict[str, Any]:
    if state == "False":
        raise LoadFailed(f"{name} did not become ready: {text}")
    return dict(service)
