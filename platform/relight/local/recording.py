"""Kubernetes Events: what happened to an object, for people (``kubectl describe``, ``kubectl get events``)."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, Literal

from relight.base.errors import RelightError
from relight.base.ids import suffix
from relight.local.kube import kinds
from relight.local.kube.store import ObjectStore, timestamp

log = logging.getLogger("relight.local")

KEPT = 20
"""Events that are kept per object and reason; the oldest go. A cluster forgets them after an hour instead."""


class Recorder:
    """Writes Events. One that repeats the last of its reason counts up. It never raises: an Event is a courtesy."""

    def __init__(self, store: ObjectStore, component: str = "relight") -> None:
        self._store = store
        self._component = component

    def record(
        self,
        obj: Mapping[str, Any],
        kind: Literal["Normal", "Warning"],
        reason: str,
        message: str,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Something happened to ``obj``. ``reason`` is one word in CamelCase, ``message`` a sentence."""
        try:
            self._record(obj, kind, reason, message, dict(annotations or {}))
        except RelightError as error:
            log.warning("event.unrecorded reason=%s error=%s", reason, error)

    def _record(
        self, obj: Mapping[str, Any], kind: str, reason: str, message: str, annotations: dict[str, str]
    ) -> None:
        meta, now = obj["metadata"], timestamp(time.time())
        namespace = meta.get("namespace") or "default"
        past = [
            event
            for event in self._store.list(kinds.EVENT, namespace)[0]
            if event["involvedObject"].get("uid") == meta["uid"] and event["reason"] == reason
        ]
        past.sort(key=lambda event: int(event["metadata"]["resourceVersion"]))
        if past and past[-1]["message"] == message and not annotations:
            last = past[-1]
            self._store.update(kinds.EVENT, {**last, "count": last.get("count", 1) + 1, "lastTimestamp": now})
            return
        for old in past[: max(0, len(past) - KEPT + 1)]:
            self._store.delete(kinds.EVENT, namespace, old["metadata"]["name"])
        involved = {
            "apiVersion": obj["apiVersion"],
            "kind": obj["kind"],
            "name": meta["name"],
            "namespace": namespace,
            "uid": meta["uid"],
        }
        self._store.create(
            kinds.EVENT,
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {
                    "name": f"{meta['name']}.{suffix(10)}",
                    "namespace": namespace,
                    "annotations": annotations,
                },
                "involvedObject": involved,
                "type": kind,
                "reason": reason,
                "message": message,
                "count": 1,
                "firstTimestamp": now,
                "lastTimestamp": now,
                "source": {"component": self._component},
                "reportingComponent": self._component,
                "reportingInstance": "local",
            },
        )
