"""What `relight doctor` says of a cluster: one verdict for each thing that was looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from relight.cluster.documents import Document

Verdict = Literal["ok", "warning", "failed", "unknown"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. ``mend`` is a command or a sentence; empty where nothing has to be done."""

    name: str
    verdict: Verdict
    finding: str
    mend: str = ""


def revision_spec(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The pod part of a Knative Service; empty for anything else."""
    if value["kind"] != "Service" or not str(value["apiVersion"]).startswith("serving.knative.dev/"):
        return {}
    found: Mapping[str, Any] = ((value.get("spec") or {}).get("template") or {}).get("spec") or {}
    return found


def images(documents: Sequence[Document]) -> dict[str, list[str]]:
    """Image → the names of the Services that run it."""
    found: dict[str, list[str]] = {}
    for document in documents:
        for container in revision_spec(document.value).get("containers") or ():
            found.setdefault(str(container.get("image") or ""), []).append(str(document.value["metadata"]["name"]))
    return found
