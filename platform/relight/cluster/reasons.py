"""Why a Service is not ready yet, as its pods tell it: the condition of a Service only says that it waits. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_PULLING = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ImageInspectError", "RegistryUnavailable")
_INSUFFICIENT = re.compile(r"Insufficient ([a-z0-9][\w./-]*[a-z0-9])")
CONTAINER = "user-container"


def why_waiting(pods: Sequence[Mapping[str, Any]]) -> str | None:
    """What the newest pod that is not ready waits for; None: nothing is known, or all are ready."""
    waiting = [pod for pod in pods if not _is_ready(pod) and not pod["metadata"].get("deletionTimestamp")]
    if not waiting:
        return None
    newest = max(waiting, key=lambda pod: str(pod["metadata"].get("creationTimestamp") or ""))
    return _reason(newest)


def _reason(pod: Mapping[str, Any]) -> str | None:
    status = pod.get("status") or {}
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return _unscheduled(str(scheduled.get("message") or scheduled.get("reason") or "no node has been found"))
    for name, state in _states(status):
        waits = state.get("waiting") or {}
        reason, message = str(waits.get("reason") or ""), str(waits.get("message") or "")
        if reason in _PULLING:
            return f"the image cannot be pulled: {message or reason}"
        if reason == "CrashLoopBackOff":
            return f"the container {name} ended and is started again: {_last(status, name) or message or reason}"
        if reason == "CreateContainerConfigError":
            return f"the container cannot be made: {message or reason}"
        if reason in ("ContainerCreating", "PodInitializing"):
            return message or "pulling the image, or waiting for a volume"
        if reason:
            return f"{name}: {reason}" + (f": {message}" if message else "")
    if any("running" in state for _, state in _states(status)):
        return "the function is loading"
    return "the pod was made and waits for a node" if status.get("phase") == "Pending" else None


def _unscheduled(message: str) -> str:
    """The scheduler's message, shorter where it is about what people most often lack."""
    lacking = sorted(set(_INSUFFICIENT.findall(message)))
    gpus = [name for name in lacking if "/" in name]
    if gpus:
        return f"unschedulable: no node has {' and '.join(gpus)} free ({message})"
    return f"unschedulable: {message}"


def _states(status: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """(container, state), the function's own container first."""
    found = [
        (str(one.get("name")), one.get("state") or {})
        for key in ("initContainerStatuses", "containerStatuses")
        for one in status.get(key) or ()
    ]
    return sorted(found, key=lambda one: one[0] != CONTAINER)


def _last(status: Mapping[str, Any], name: str) -> str | None:
    for one in status.get("containerStatuses") or ():
        ended = (one.get("lastState") or {}).get("terminated") if one.get("name") == name else None
        if ended:
            return str(ended.get("message") or f"exit code {ended.get('exitCode')}, {ended.get('reason')}")
    return None


def _is_ready(pod: Mapping[str, Any]) -> bool:
    return _condition(pod.get("status") or {}, "Ready").get("status") == "True"


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((one for one in status.get("conditions") or () if one.get("type") == kind), {})
