"""How a function stands: its Service, its revisions, what each of them has of the traffic and of replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relight.base.errors import Forbidden
from relight.cluster.reasons import why_waiting
from relight.cluster.traffic import pair, shares
from relight.cluster.waiting import REVISION_LABEL, SERVING, readiness

if TYPE_CHECKING:
    from relight.net.kube import Kube

_SERVICE_LABEL = "serving.knative.dev/service"


@dataclass(frozen=True)
class RevisionStanding:
    """One revision of a function."""

    name: str
    ready: str
    """True, False or Unknown, as the condition has it."""
    percent: int
    tags: tuple[str, ...]
    role: str
    """stable or canary while a canary is out, else empty."""
    replicas: int | None
    """Pods; None where this user may not look at pods."""
    reason: str
    """What it waits for, or why it failed; empty where all is well."""


@dataclass(frozen=True)
class Standing:
    """One function. ``ready`` is True, False or Unknown."""

    name: str
    namespace: str
    ready: str
    reason: str
    url: str | None
    revisions: tuple[RevisionStanding, ...]


def standing(kube: Kube, name: str, namespace: str) -> Standing:
    """How a function stands now. NotFound: there is no such Service."""
    service = kube.get(SERVING, "Service", name, namespace)
    listed = kube.list(SERVING, "Revision", namespace, labels=f"{_SERVICE_LABEL}={name}")["items"]
    try:
        pods = kube.list("v1", "Pod", namespace, labels=f"{_SERVICE_LABEL}={name}")["items"]
    except Forbidden:
        pods = None
    ready, reason = readiness(service, int(service["metadata"].get("generation") or 0))
    revisions = [_revision(service, one, pods) for one in sorted(listed, key=_age)]
    return Standing(
        name,
        namespace,
        ready,
        "" if ready == "True" else reason,
        (service.get("status") or {}).get("url"),
        tuple(revisions),
    )


def _age(revision: Mapping[str, Any]) -> tuple[str, str]:
    meta = revision["metadata"]
    return str(meta.get("creationTimestamp") or ""), str(meta["name"])


def _revision(
    service: Mapping[str, Any], revision: Mapping[str, Any], pods: list[dict[str, Any]] | None
) -> RevisionStanding:
    name = str(revision["metadata"]["name"])
    own = [share for share in shares(service) if share.revision == name]
    out = pair(service)
    role = {out.stable: "stable", out.canary: "canary"}.get(name, "") if out else ""
    condition = _ready(revision)
    mine = None if pods is None else [one for one in pods if _labels(one).get(REVISION_LABEL) == name]
    reason = why_waiting(mine or ()) or ""
    if condition.get("status") == "False":
        reason = ": ".join(part for part in (condition.get("reason"), condition.get("message")) if part)
    elif not reason and condition.get("status") != "True":
        reason = str(condition.get("message") or "")
    return RevisionStanding(
        name,
        str(condition.get("status") or "Unknown"),
        sum(share.percent for share in own),
        tuple(share.tag for share in own if share.tag),
        role,
        None if mine is None else len(mine),
        reason,
    )


def _ready(revision: Mapping[str, Any]) -> Mapping[str, Any]:
    conditions = (revision.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one.get("type") == "Ready"), {})


def _labels(value: Mapping[str, Any]) -> Mapping[str, str]:
    return value["metadata"].get("labels") or {}
