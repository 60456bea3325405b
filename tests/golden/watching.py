"""Watching a platform as the recording of the real cluster was watched: every change of five kinds, in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relight.base.errors import RelightError
from relight.net.kube import Kube

KINDS = {
    "Service": "serving.knative.dev/v1",
    "Configuration": "serving.knative.dev/v1",
    "Revision": "serving.knative.dev/v1",
    "Route": "serving.knative.dev/v1",
    "PodAutoscaler": "autoscaling.internal.knative.dev/v1alpha1",
}
Row = dict[str, Any]


def row(change: str, obj: Mapping[str, Any]) -> Row:
    """A change as the recording holds it."""
    status = obj.get("status") or {}
    kept = ("type", "status", "reason", "message")
    conditions = [{key: one[key] for key in kept if one.get(key)} for one in status.get("conditions") or ()]
    return {
        "type": change,
        "kind": obj["kind"],
        "name": obj["metadata"]["name"],
        "conditions": sorted(conditions, key=lambda one: one["type"]),
        "status": status,
    }


@dataclass
class Watched:
    """All changes so far, by all watches."""

    rows: list[Row] = field(default_factory=list)
    came: threading.Condition = field(default_factory=threading.Condition)

    def of(self, kind: str, name: str) -> list[Row]:
        return [one for one in self.rows if (one["kind"], one["name"]) == (kind, name)]

    def until(self, what: Callable[[list[Row]], bool], timeout: float = 60.0) -> None:
        """Wait until something is true of the rows."""
        with self.came:
            if not self.came.wait_for(lambda: what(self.rows), timeout):
                last = "\n".join(str({**one, "status": ""}) for one in self.rows[-12:])
                raise AssertionError(f"not seen within {timeout:.0f} s; the last changes:\n{last}")


def watch(kubeconfig: Path, watched: Watched) -> list[threading.Thread]:
    """Follow every kind from now on, until the platform ends."""

    with Kube.from_kubeconfig(kubeconfig) as kube:
        since = {
            kind: kube.list(version, kind, "default")["metadata"]["resourceVersion"] for kind, version in KINDS.items()
        }

    def follow(kind: str, version: str) -> None:
        try:
            with Kube.from_kubeconfig(kubeconfig) as kube:
                # From a version on: a thread that comes late misses nothing.
                for change, obj in kube.watch(version, kind, "default", since=since[kind]):
                    with watched.came:
                        watched.rows.append(row(change, obj))
                        watched.came.notify_all()
        except RelightError:
            return  # the platform has ended

    threads = [threading.Thread(target=follow, args=one, name=f"watch/{one[0]}", daemon=True) for one in KINDS.items()]
    for thread in threads:
        thread.start()
    return threads


def states(rows: Iterable[Row]) -> list[str]:
    """The conditions after each change, as text; one that says nothing new is left out."""
    found: list[str] = []
    for one in rows:
        if one["type"] == "DELETED":
            continue
        text = " ".join(map(shown, one["conditions"]))
        if text and (not found or found[-1] != text):
            found.append(text)
    return found


def shown(condition: Mapping[str, str]) -> str:
    words = condition["type"] + "=" + condition["status"]
    if condition.get("reason") or condition.get("message"):
        words += f"({condition.get('reason', '')}: {condition.get('message', '')})"
    return words
