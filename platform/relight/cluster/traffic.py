"""Which revision gets how much of a function's traffic, through its Knative Service.

The Service's spec has the split; two annotations say what is what while a canary is out, for a split of 50 to 50 does
not tell which revision is the new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relight.base.errors import BadInput, Conflict, NotFound
from relight.cluster.waiting import SERVING

if TYPE_CHECKING:
    from relight.net.kube import Kube

CANARY, STABLE = "relight.dev/canary", "relight.dev/stable"
"""Annotations of the Service: the names of the two revisions, while a canary is out."""
_SERVICE_LABEL = "serving.knative.dev/service"
_GENERATION = "serving.knative.dev/configurationGeneration"


@dataclass(frozen=True)
class Share:
    """One target of a Service's traffic, by the revision that it means now."""

    revision: str
    percent: int
    tag: str | None = None
    url: str | None = None


@dataclass(frozen=True)
class Pair:
    """The two revisions of a canary."""

    stable: str
    canary: str
    percent: int
    tag: str | None


def shares(service: Mapping[str, Any]) -> list[Share]:
    """How the traffic is split now, as the Service's status says it."""
    return [
        Share(
            str(one.get("revisionName", "")),
            int(one.get("percent") or 0),
            one.get("tag") or None,
            one.get("url") or None,
        )
        for one in (service.get("status") or {}).get("traffic") or ()
    ]


def pair(service: Mapping[str, Any]) -> Pair | None:
    """The canary that is out; None: there is none."""
    annotations: Mapping[str, str] = service["metadata"].get("annotations") or {}
    if not annotations.get(CANARY) or not annotations.get(STABLE):
        return None
    canary = annotations[CANARY]
    targets = [one for one in (service.get("spec") or {}).get("traffic") or () if one.get("revisionName") == canary]
    percent = sum(int(one.get("percent") or 0) for one in targets)
    return Pair(annotations[STABLE], canary, percent, next((one["tag"] for one in targets if one.get("tag")), None))


def begin(kube: Kube, name: str, namespace: str) -> str | None:
    """Hold the traffic where it is, before a new revision is made; the revision that has most of it.

    None: there is no such Service yet, and its first revision gets everything.
    """
    try:
        service = kube.get(SERVING, "Service", name, namespace)
    except NotFound:
        return None
    out = pair(service)
    stable = out.stable if out else _most(service)
    _write(kube, service, [{"revisionName": stable, "percent": 100}], {CANARY: None, STABLE: None})
    return stable


def give(kube: Kube, name: str, namespace: str, canary: str | None, percent: int, tag: str | None) -> Pair:
    """Give a revision (None: the newest that is ready) a share; the old one keeps the rest. What is out, then."""
    service = kube.get(SERVING, "Service", name, namespace)
    out = pair(service)
    newest = str((service.get("status") or {}).get("latestReadyRevisionName") or "")
    canary = canary or (out.canary if out else newest)
    if not canary:
        raise NotFound(f"{name} has no revision that is ready")
    stable = out.stable if out and out.stable != canary else _before(kube, service, canary)
    if out and out.canary == canary:
        tag = tag or out.tag
    split = [{"revisionName": stable, "percent": 100 - percent}, {"revisionName": canary, "percent": percent}]
    if tag:
        split[1]["tag"] = tag
    _write(kube, service, split, {CANARY: canary, STABLE: stable})
    return Pair(stable, canary, percent, tag)


def promote(kube: Kube, name: str, namespace: str) -> str:
    """Give the canary everything; its name. Is it the newest revision, later ones follow it at once, as before."""
    service = kube.get(SERVING, "Service", name, namespace)
    out = _needed(service)
    newest = (service.get("status") or {}).get("latestCreatedRevisionName")
    whole: dict[str, Any] = {"latestRevision": True} if out.canary == newest else {"revisionName": out.canary}
    _write(kube, service, [{**whole, "percent": 100}], {CANARY: None, STABLE: None})
    return out.canary


def rollback(kube: Kube, name: str, namespace: str) -> str:
    """Give the old revision everything; its name. The canary can still be called by its tag, to see what it does."""
    service = kube.get(SERVING, "Service", name, namespace)
    out = _needed(service)
    split: list[dict[str, Any]] = [{"revisionName": out.stable, "percent": 100}]
    if out.tag:
        split.append({"revisionName": out.canary, "percent": 0, "tag": out.tag})
    _write(kube, service, split, {CANARY: None, STABLE: None})
    return out.stable


def _needed(service: Mapping[str, Any]) -> Pair:
    out = pair(service)
    if out is None:
        name = service["metadata"]["name"]
        raise Conflict(f"{name} has no canary out: relight traffic {name} --canary PERCENT begins")
    return out


def _most(service: Mapping[str, Any]) -> str:
    """The revision that has most of the traffic."""
    status = service.get("status") or {}
    found = max(shares(service), key=lambda share: share.percent, default=None)
    name = found.revision if found else str(status.get("latestReadyRevisionName") or "")
    if not name:
        raise Conflict(
            f"{service['metadata']['name']} has no revision that is ready: a canary has nothing to go beside"
        )
    return name


def _before(kube: Kube, service: Mapping[str, Any], canary: str) -> str:
    """The revision that a canary goes beside: that which has most of the traffic, or the last one before it."""
    most = _most(service)
    if most != canary:
        return most
    meta = service["metadata"]
    listed = kube.list(SERVING, "Revision", meta["namespace"], labels=f"{_SERVICE_LABEL}={meta['name']}")["items"]
    own = next((_generation(one) for one in listed if one["metadata"]["name"] == canary), None)
    if own is None:
        raise NotFound(f"{meta['name']} has no revision {canary}")
    older: dict[str, int] = {
        str(one["metadata"]["name"]): _generation(one) for one in listed if _is_ready(one) and _generation(one) < own
    }
    if not older:
        raise BadInput(f"{canary} is the only revision of {meta['name']}: a canary needs an old one beside it")
    return max(older, key=lambda name: older[name])


def _generation(revision: Mapping[str, Any]) -> int:
    return int((revision["metadata"].get("labels") or {}).get(_GENERATION) or 0)


def _is_ready(revision: Mapping[str, Any]) -> bool:
    conditions = (revision.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def _write(
    kube: Kube, service: Mapping[str, Any], split: Sequence[Mapping[str, Any]], annotations: Mapping[str, str | None]
) -> None:
    """Change the split, and keep tags that lead to other revisions without taking traffic."""
    meta = service["metadata"]
    taken = {one.get("tag") for one in split} | {None}
    kept = [
        {"revisionName": share.revision, "percent": 0, "tag": share.tag}
        for share in shares(service)
        if share.tag not in taken and share.percent == 0 and share.revision
    ]
    change = {"metadata": {"annotations": dict(annotations)}, "spec": {"traffic": [*split, *kept]}}
    kube.patch(SERVING, "Service", meta["name"], change, meta["namespace"])
