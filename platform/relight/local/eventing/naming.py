"""Hubs by their names: what a Broker and a channel are called in the log and in paths.

A *hub* is whatever events are published to, known by namespace and name: ``rec`` for a Broker, ``channels/rec`` for a
Channel (no object's name has a slash).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relight.local.kube import kinds

Hub = tuple[str, str]
"""Namespace and name."""

CHANNELS = (kinds.CHANNEL, kinds.IN_MEMORY_CHANNEL)


def hub_name(kind: kinds.Kind, name: str) -> str:
    """The hub of a Broker or a channel: its path below the namespace, too."""
    return name if kind == kinds.BROKER else f"{kind.plural}/{name}"


def hub_of(namespace: str, destination: Mapping[str, Any]) -> Hub | None:
    """The hub that a destination is; None where it is something else, or a path below one."""
    ref = destination.get("ref")
    if not ref or destination.get("uri"):
        return None
    kind = kinds.by_kind(str(ref.get("apiVersion", "")), str(ref.get("kind", "")))
    if kind is None or kind not in (kinds.BROKER, *CHANNELS):
        return None
    return str(ref.get("namespace") or namespace), hub_name(kind, str(ref.get("name", "")))
