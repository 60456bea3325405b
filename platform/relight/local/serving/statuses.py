"""What Revisions and PodAutoscalers say of themselves, in Knative's conditions, reasons and messages. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relight.decide.last_step import Activity
from relight.local.conditions import Condition, Status, render, summary
from relight.local.serving.autoscaling import Scale
from relight.local.serving.placing import Shortage
from relight.local.serving.replica import Failure

Object = dict[str, Any]
BUFFERING = "Requests to the target are being buffered as resources are provisioned."
NO_TRAFFIC = "The target is not receiving traffic."
NO_BACKENDS = "K8s Service is not ready"

_INACTIVE = Condition("Active", "False", "NoTraffic", NO_TRAFFIC, info=True)
_DEPLOYING = Condition("ContainerHealthy", "Unknown", "Deploying")
_ACTIVE = {
    Activity.ACTIVE: Condition("Active", "True", info=True),
    Activity.ACTIVATING: Condition("Active", "Unknown", "Queued", BUFFERING, info=True),
    Activity.INACTIVE: _INACTIVE,
}


def resolving() -> list[Condition]:
    """A new revision whose code is being copied: what a cluster calls resolving its image's digest."""
    return [Condition("ResourcesAvailable", "Unknown", "ResolvingDigests"), Condition("ContainerHealthy", "Unknown")]


def refused(why: str) -> list[Condition]:
    """Nothing of it can run on this machine."""
    return [
        Condition("ContainerHealthy", "False", "ContainerMissing", why),
        Condition("ResourcesAvailable", "Unknown"),
        _INACTIVE,
    ]


def running(scale: Scale, actual: int, failure: Failure | None, shortage: Shortage | None = None) -> list[Condition]:
    """A revision that replicas are, were, or will be started of.

    What the machine can never hold has failed, as on a cluster; what only has to wait for room has not.
    """
    active = _ACTIVE[scale.activity]
    if shortage is not None and not actual:
        healthy = Condition("ContainerHealthy", "True") if scale.initialized else _DEPLOYING
        status: Status = "False" if shortage.ever else "Unknown"
        return [active, healthy, Condition("ResourcesAvailable", status, "Unschedulable", shortage.message)]
    if failure is not None and not actual:
        message = f"Container failed with: {failure.message}"
        available = Condition("ResourcesAvailable", "True" if scale.initialized else "Unknown")
        return [active, Condition("ContainerHealthy", "False", failure.reason.value, message), available]
    if scale.initialized or actual:
        return [active, Condition("ContainerHealthy", "True"), Condition("ResourcesAvailable", "True")]
    return [
        active,
        _DEPLOYING,
        Condition("ResourcesAvailable", "Unknown", "Deploying"),
    ]


def of_revision(revision: Mapping[str, Any], conditions: list[Condition], now: str, **counts: int) -> Object:
    """``status`` of a Revision. ``counts``: actualReplicas and, once it is known, desiredReplicas."""
    before = (revision.get("status") or {}).get("conditions") or ()
    container = revision["spec"]["containers"][0]
    return {
        **counts,
        "observedGeneration": revision["metadata"]["generation"],
        "conditions": render([*conditions, summary(conditions)], before, now),
        "containerStatuses": [{"name": container.get("name") or "user-container"}],
    }


def of_autoscaler(autoscaler: Mapping[str, Any], scale: Scale, actual: int, now: str) -> Object:
    """``status`` of a PodAutoscaler. Its Ready is what Active says, then whether there is a replica to serve."""
    name, before = autoscaler["metadata"]["name"], (autoscaler.get("status") or {}).get("conditions") or ()
    shown = _ACTIVE[scale.activity]
    active = Condition("Active", shown.status, shown.reason, shown.message)
    serving = Condition("SKSReady", "True") if actual else Condition("SKSReady", "Unknown", "NotReady", NO_BACKENDS)
    decisive = serving if active.status == "True" else active
    conditions = [
        active,
        Condition("Ready", decisive.status, decisive.reason, decisive.message),
        serving,
        Condition("ScaleTargetInitialized", "True" if scale.initialized else "Unknown"),
    ]
    return {
        "actualScale": actual,
        "desiredScale": scale.desired,
        "observedGeneration": autoscaler["metadata"]["generation"],
        "serviceName": name,
        "metricsServiceName": f"{name}-private",
        "conditions": render(conditions, before, now),
    }
