"""What ``kubectl get`` prints: columns per kind, as Kubernetes and Knative's definitions have them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from relight.local.kube import kinds
from relight.local.kube.kinds import Kind

_NAME_HELP = (
    "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a "
    "client to request the generation of an appropriate name automatically. Name is primarily intended for creation "
    "idempotence and configuration definition. Cannot be updated. More info: "
    "https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names"
)
_JSON_PATH = "Custom resource definition column (in JSONPath format): "


class Column(NamedTuple):
    """A heading, its type, where its value comes from, and whether it shows only with ``-o wide``."""

    name: str
    type: str
    path: str
    value: Callable[[dict[str, Any], float], Any]
    wide: bool = False


def _look(*path: str) -> Callable[[dict[str, Any], float], Any]:
    def value(obj: dict[str, Any], now: float) -> Any:
        found: Any = obj
        for step in path:
            found = found.get(step) if isinstance(found, dict) else None
        return found

    return value


def _ready(field: str) -> Callable[[dict[str, Any], float], Any]:
    def value(obj: dict[str, Any], now: float) -> Any:
        conditions = (obj.get("status") or {}).get("conditions") or ()
        return next((found.get(field) for found in conditions if found.get("type") == "Ready"), None)

    return value


def _plain(name: str, *path: str, type: str = "string", wide: bool = False) -> Column:
    return Column(name, type, "." + ".".join(path), _look(*path), wide)


def _label(name: str, label: str) -> Column:
    path = ".metadata.labels['" + label.replace(".", "\\.") + "']"
    return Column(name, "string", path, _look("metadata", "labels", label))


def age(obj: dict[str, Any], now: float) -> str:
    """Time since creation as kubectl writes it: ``4s``, ``11m``, ``3h5m``, ``2d``."""
    try:
        created = datetime.fromisoformat(obj["metadata"]["creationTimestamp"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return "<unknown>"
    return human_duration(max(0, int(now - created)))


def human_duration(seconds: int) -> str:
    """Two units where the larger is small, one otherwise (``duration.HumanDuration`` of Kubernetes)."""
    if seconds < 120:
        return f"{seconds}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    return f"{days}d" if days < 730 else f"{days // 365}y"


_AGE = Column("Age", "date", ".metadata.creationTimestamp", age)
_READY = Column("Ready", "string", ".status.conditions[?(@.type=='Ready')].status", _ready("status"))
_REASON = Column("Reason", "string", ".status.conditions[?(@.type=='Ready')].reason", _ready("reason"))
_READY_2 = _READY._replace(path='.status.conditions[?(@.type=="Ready")].status')
_REASON_2 = _REASON._replace(path='.status.conditions[?(@.type=="Ready")].reason')


def _containers(obj: dict[str, Any], now: float) -> str:
    statuses = (obj.get("status") or {}).get("containerStatuses") or ()
    total = len((obj.get("spec") or {}).get("containers") or ()) or len(statuses)
    return f"{sum(bool(status.get('ready')) for status in statuses)}/{total}"


def _restarts(obj: dict[str, Any], now: float) -> str:
    statuses = (obj.get("status") or {}).get("containerStatuses") or ()
    return str(sum(status.get("restartCount") or 0 for status in statuses))


def _pod_status(obj: dict[str, Any], now: float) -> Any:
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    status = obj.get("status") or {}
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or (container.get("state") or {}).get("terminated")
        if waiting and waiting.get("reason"):
            return waiting["reason"]
    return status.get("reason") or status.get("phase")


def _about(obj: dict[str, Any], now: float) -> str:
    involved = obj.get("involvedObject") or {}
    return f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}"


def _last_seen(obj: dict[str, Any], now: float) -> str:
    at = obj.get("lastTimestamp") or obj.get("eventTime") or obj["metadata"].get("creationTimestamp")
    return age({"metadata": {"creationTimestamp": at}}, now)


def _count(field: str) -> Callable[[dict[str, Any], float], Any]:
    return lambda obj, now: len(obj.get(field) or ())


_URL = _plain("URL", "status", "url")
_CREATED = _plain("LatestCreated", "status", "latestCreatedRevisionName")
_LATEST_READY = _plain("LatestReady", "status", "latestReadyRevisionName")
_ADDRESS = _plain("URL", "status", "address", "url")

COLUMNS: dict[Kind, tuple[Column, ...]] = {
    kinds.SERVICE: (_URL, _CREATED, _LATEST_READY, _READY, _REASON),
    kinds.CONFIGURATION: (_CREATED, _LATEST_READY, _READY, _REASON),
    kinds.REVISION: (
        _label("Config Name", "serving.knative.dev/configuration"),
        _label("Generation", "serving.knative.dev/configurationGeneration"),
        _READY,
        _REASON,
        _plain("Actual Replicas", "status", "actualReplicas", type="integer"),
        _plain("Desired Replicas", "status", "desiredReplicas", type="integer"),
    ),
    kinds.ROUTE: (_URL, _READY, _REASON),
    kinds.POD_AUTOSCALER: (
        _plain("DesiredScale", "status", "desiredScale", type="integer"),
        _plain("ActualScale", "status", "actualScale", type="integer"),
        _READY,
        _REASON,
    ),
    kinds.BROKER: (
        _ADDRESS,
        _AGE,
        _READY_2,
        _REASON_2,
        Column(
            "Class",
            "string",
            ".metadata.annotations.eventing\\.knative\\.dev/broker\\.class",
            _look("metadata", "annotations", "eventing.knative.dev/broker.class"),
            True,
        ),
    ),
    kinds.TRIGGER: (
        _plain("Broker", "spec", "broker"),
        _plain("Subscriber_URI", "status", "subscriberUri"),
        _AGE,
        _READY_2,
        _REASON_2,
    ),
    kinds.POD: (
        Column("Ready", "string", "", _containers),
        Column("Status", "string", "", _pod_status),
        Column("Restarts", "string", "", _restarts),
        _AGE,
        _plain("IP", "status", "podIP", wide=True),
    ),
    kinds.NAMESPACE: (_plain("Status", "status", "phase"), _AGE),
    kinds.CONFIG_MAP: (Column("Data", "integer", "", _count("data")), _AGE),
    kinds.SECRET: (_plain("Type", "type"), Column("Data", "integer", "", _count("data")), _AGE),
    kinds.EVENT: (
        Column("Last Seen", "string", "", _last_seen),
        _plain("Type", "type"),
        _plain("Reason", "reason"),
        Column("Object", "string", "", _about),
        _plain("Message", "message"),
    ),
}
_READY_AGE = (_AGE, _READY_2, _REASON_2)


def columns(kind: Kind) -> tuple[Column, ...]:
    """The columns after the name."""
    if kind in COLUMNS:
        return COLUMNS[kind]
    if not kind.custom:
        return (_AGE,)
    return (_ADDRESS, *_READY_AGE) if "channel" in kind.categories or "flows" in kind.categories else _READY_AGE


def table(
    kind: Kind, objects: list[dict[str, Any]], metadata: dict[str, Any], *, whole: bool, headings: bool = True
) -> dict[str, Any]:
    """A ``meta.k8s.io/v1`` Table. ``whole``: rows carry the object rather than its metadata."""
    now = time.time()
    shown = columns(kind)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": _definitions(kind, shown) if headings else [],
        "rows": [
            {
                "cells": [obj["metadata"]["name"], *(column.value(obj, now) for column in shown)],
                "object": obj if whole else partial(obj),
            }
            for obj in objects
        ],
    }


def _definitions(kind: Kind, shown: tuple[Column, ...]) -> list[dict[str, Any]]:
    first = {"name": "Name", "type": "string", "format": "name", "description": _NAME_HELP, "priority": 0}
    rest = [
        {
            "name": column.name,
            "type": column.type,
            "format": "",
            "description": _JSON_PATH + column.path if kind.custom else column.name,
            "priority": int(column.wide),
        }
        for column in shown
    ]
    return [first, *rest]


def partial(obj: dict[str, Any]) -> dict[str, Any]:
    """``PartialObjectMetadata`` of an object."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
