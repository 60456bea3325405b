"""What the policy changes: two annotations of a live Revision, with the user's own values kept beside them.

A Revision's ``autoscaling.knative.dev`` annotations may change without a new revision; Knative passes them on to its
autoscaler. What the user had is written into ``relight.dev/warm-user`` in the same patch, so that anybody who finds it
there can put it back: the policy itself when it is switched off, its successor, or ``relight warm off``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from relight.base.errors import NotFound, RelightError
from relight.base.ids import suffix
from relight.decide.annotations import DOMAIN, find
from relight.net.kube import Kube

log = logging.getLogger("relight.warm")

API, KIND = "serving.knative.dev/v1", "Revision"
USER = "relight.dev/warm-user"
"""The user's own values, as JSON: ``{"min-scale": "1", "scale-down-delay": null}``."""
MIN_SCALE, DELAY = "min-scale", "scale-down-delay"
_ACTED = (MIN_SCALE, DELAY)


def users(annotations: Mapping[str, str]) -> dict[str, str | None]:
    """The values that the user gave, whether the policy has put its own over them or not."""
    if USER in annotations:
        try:
            kept = json.loads(annotations[USER])
            return {name: kept.get(name) for name in _ACTED}
        except (ValueError, AttributeError):
            log.warning("warm.lost annotation=%s: it cannot be read; the user's values are taken as not given", USER)
            return dict.fromkeys(_ACTED)
    found = {name: find(annotations, name) for name in _ACTED}
    return {name: value[1] if value else None for name, value in found.items()}


def change(annotations: Mapping[str, str], min_scale: int | None, delay: int | None) -> dict[str, str | None] | None:
    """The patch of the annotations that gives a revision these values; None where it has them.

    Less than what the user asked for is never set: the policy keeps more, not less.
    """
    own = users(annotations)
    wanted: dict[str, str | None] = dict(own)
    if min_scale is not None and min_scale > int(own[MIN_SCALE] or 0):
        wanted[MIN_SCALE] = str(min_scale)
    if delay is not None and delay > 0 and own[DELAY] is None:
        wanted[DELAY] = f"{delay}s"
    if wanted == own and USER not in annotations:
        return None
    patch: dict[str, str | None] = {}
    for name, value in wanted.items():
        key = f"{DOMAIN}/{name}"
        other = find({one: text for one, text in annotations.items() if one != key}, name)
        if value == own[name] and other is not None and other[1] == value:
            value = None  # the user's old spelling says it
        if annotations.get(key) != value:
            patch[key] = value
    marker = None if wanted == own else json.dumps(own)
    if annotations.get(USER) != marker:
        patch[USER] = marker
    return patch or None


class Actor:
    """Changes revisions, and tells of it. ``dry``: tells only."""

    def __init__(self, kube: Kube, *, dry: bool) -> None:
        self._kube = kube
        self._dry = dry
        self._told: dict[tuple[str, str], tuple[int | None, int | None]] = {}

    def give(
        self, revision: dict[str, Any], min_scale: int | None, delay: int | None, reason: str, message: str
    ) -> bool:
        """See to it that a revision has these values; whether anything changed. ``revision`` is brought up to date."""
        meta = revision["metadata"]
        annotations = meta.get("annotations") or {}
        patch = change(annotations, min_scale, delay)
        key = (meta["namespace"], meta["name"])
        if patch is None:
            self._told.pop(key, None)
            return False
        if self._dry:
            if self._told.get(key) == (min_scale, delay):
                return False
            self._told[key] = (min_scale, delay)
            self.tell(revision, f"{reason}DryRun", f"would be done: {message}")
            return False
        changed = self._kube.patch(API, KIND, key[1], {"metadata": {"annotations": patch}}, key[0])
        revision.clear()
        revision.update(changed)
        self.tell(revision, reason, message)
        log.info("warm.changed revision=%s/%s min-scale=%s delay=%s: %s", *key, min_scale, delay, message)
        return True

    def tell(self, revision: Mapping[str, Any], reason: str, message: str) -> None:
        """An Event of the revision. It never raises: an Event is a courtesy."""
        meta = revision["metadata"]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{meta['name']}.{suffix(10)}", "namespace": meta["namespace"]},
            "involvedObject": {
                "apiVersion": API,
                "kind": KIND,
                "name": meta["name"],
                "namespace": meta["namespace"],
                "uid": meta["uid"],
            },
            "type": "Normal",
            "reason": reason,
            "message": message[:1000],
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": "relight-warm"},
            "reportingComponent": "relight-warm",
            "reportingInstance": "relight-warm",
        }
        try:
            self._kube.create(event)
        except RelightError as error:
            log.warning("warm.unrecorded reason=%s error=%s", reason, error)


def restore(kube: Kube, why: str) -> list[str]:
    """Give every revision of the cluster the user's own values back; answers their names."""
    actor, restored = Actor(kube, dry=False), []
    for item in kube.list(API, KIND, everywhere=True)["items"]:
        if USER not in (item["metadata"].get("annotations") or {}):
            continue
        item = {"apiVersion": API, "kind": KIND, **item}
        try:
            if actor.give(item, None, None, "WarmRestored", f"the user's own values are back: {why}"):
                restored.append(f"{item['metadata']['namespace']}/{item['metadata']['name']}")
        except NotFound:
            continue
    return restored
