"""What is deployed, as the policy needs it: Services with their revisions, and what their owners say."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relight.base.errors import RelightError
from relight.base.units import parse_duration
from relight.decide import offpeak
from relight.decide.annotations import find
from relight.decide.defaults import ClusterDefaults
from relight.decide.scaling import resolve_target
from relight.net.kube import Kube
from relight.warm.functions import Key
from relight.warm.settings import WarmSettings

log = logging.getLogger("relight.warm")

SERVICE = "serving.knative.dev/service"
WARM = "relight.dev/warm"
"""On a Service: ``off`` bans the policy, ``pin`` or ``pin:N`` keeps replicas always."""
RULES = "relight.dev/warm-rules"
"""On a Service: rules of ``decide.offpeak``."""
SHARE = "relight.dev/gpu-share"
"""On a Service: share of one GPU that a replica costs, where its resources do not say."""


@dataclass
class Deployed:
    """One function."""

    names: tuple[str, ...]
    """All its revisions."""
    latest: dict[str, Any] | None
    """The revision that is ready and newest."""
    left: list[dict[str, Any]]
    """Others on which the policy has left something."""
    replicas: int
    """Up now, of all revisions."""
    url: str | None
    share: float
    gpu: bool
    target: float
    """Load that one replica bears."""
    window: float
    banned: bool = False
    pinned: int = 0
    rules: tuple[offpeak.Rule, ...] = ()


def read_deployed(kube: Kube, settings: WarmSettings) -> dict[Key, Deployed]:
    """All functions of the cluster."""
    by_service: dict[Key, list[dict[str, Any]]] = {}
    for revision in kube.list("serving.knative.dev/v1", "Revision", everywhere=True)["items"]:
        meta = revision["metadata"]
        name = (meta.get("labels") or {}).get(SERVICE)
        if name:
            revision = {"apiVersion": "serving.knative.dev/v1", "kind": "Revision", **revision}
            by_service.setdefault((meta["namespace"], name), []).append(revision)
    found: dict[Key, Deployed] = {}
    for service in kube.list("serving.knative.dev/v1", "Service", everywhere=True)["items"]:
        key = (service["metadata"]["namespace"], service["metadata"]["name"])
        found[key] = _deployed(service, by_service.get(key, []), settings)
    return found


def _deployed(service: Mapping[str, Any], revisions: list[dict[str, Any]], settings: WarmSettings) -> Deployed:
    status = service.get("status") or {}
    annotations = service["metadata"].get("annotations") or {}
    latest = [one for one in revisions if one["metadata"]["name"] == status.get("latestReadyRevisionName")]
    left = [
        one
        for one in revisions
        if one not in latest and "relight.dev/warm-user" in (one["metadata"].get("annotations") or {})
    ]
    share, gpu = _share(annotations, latest, settings)
    warm = annotations.get(WARM, "")
    scaling = (latest[0]["metadata"].get("annotations") or {}) if latest else {}
    return Deployed(
        names=tuple(one["metadata"]["name"] for one in revisions),
        latest=latest[0] if latest else None,
        left=left,
        replicas=sum(int((one.get("status") or {}).get("actualReplicas") or 0) for one in revisions),
        url=status.get("url"),
        share=share,
        gpu=gpu,
        target=_target(scaling, latest),
        window=_window(scaling, settings),
        banned=warm == "off",
        pinned=_pins(warm),
        rules=_rules(service, annotations.get(RULES, "")),
    )


def _share(annotations: Mapping[str, str], latest: list[dict[str, Any]], settings: WarmSettings) -> tuple[float, bool]:
    """Of a GPU, per replica; and whether it is one."""
    for revision in latest:
        for container in revision["spec"].get("containers") or ():
            for name, number in ((container.get("resources") or {}).get("limits") or {}).items():
                if name.startswith("nvidia.com/") and str(number).isdigit():
                    given = annotations.get(SHARE)
                    return (_number(given, float(number)), True)
    return _number(annotations.get(SHARE), settings.cpu_share), SHARE in annotations


def _number(text: str | None, default: float) -> float:
    try:
        value = float(text) if text else default
    except ValueError:
        return default
    return value if 0 < value < 1000 else default


def _pins(text: str) -> int:
    kind, _, number = text.partition(":")
    return (int(number) if number.isdigit() else 1) if kind == "pin" else 0


def _rules(service: Mapping[str, Any], text: str) -> tuple[offpeak.Rule, ...]:
    try:
        return offpeak.parse(text)
    except RelightError as error:
        log.warning("warm.rules service=%s: %s; none of them is followed", service["metadata"]["name"], error)
        return ()


def _target(annotations: Mapping[str, str], latest: list[dict[str, Any]]) -> float:
    concurrency = int(latest[0]["spec"].get("containerConcurrency") or 0) if latest else 0
    given = find(annotations, "target")
    try:
        target, _ = resolve_target(
            metric="concurrency",
            container_concurrency=concurrency,
            target=float(given[1]) if given else None,
            utilization=None,
            defaults=ClusterDefaults(),
        )
    except ValueError:
        return 1.0
    return target


def _window(annotations: Mapping[str, str], settings: WarmSettings) -> float:
    given = find(annotations, "window")
    try:
        return parse_duration(given[1]) if given else settings.window
    except ValueError:
        return settings.window
