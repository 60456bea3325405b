"""Hubs by their names: what a Broker and a channel are called in the log and in paths.

A *hub* is whatever events are published to, known by namespace and name: ``rec`` for a Broker, ``channels/rec`` for a
Channel, ``kafkasinks/rec`` for a KafkaSink (no object's name has a slash).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relight.local.kube import kinds

Hub = tuple[str, str]
"""Namespace and name."""

CHANNELS = (kinds.CHANNEL, kinds.IN_MEMORY_CHANNEL, kinds.NATS_JETSTREAM_CHANNEL)
SINKS = (kinds.KAFKA_SINK, kinds.REDIS_STREAM_SINK)
HUBS = (kinds.BROKER, *CHANNELS, *SINKS)
"""The kinds that events can be posted to."""
SINK_SCHEME = "sink"
"""Of the destination behind a hub whose events leave for a message broker: ``sink://NAMESPACE/HUB``."""


def hub_name(kind: kinds.Kind, name: str) -> str:
    """The hub of a Broker, a channel or a sink: its path below the namespace, too."""
    return name if kind == kinds.BROKER else f"{kind.plural}/{name}"


def hub_of(namespace: str, destination: Mapping[str, Any]) -> Hub | None:
    """The hub that a destination is; None where it is something else, or a path below one."""
    ref = destination.get("ref")
    if not ref or destination.get("uri"):
        return None
    kind = kinds.by_kind(str(ref.get("apiVersion", "")), str(ref.get("kind", "")))
    if kind is None or kind not in HUBS:
        return None
    return str(ref.get("namespace") or namespace), hub_name(kind, str(ref.get("name", "")))


def outgoing(kind: kinds.Kind, name: str) -> str:
    """The hub that a channel's Subscriptions get events from. Those of a JetStream channel have been through NATS."""
    hub = hub_name(kind, name)
    return f"{hub}/received" if kind == kinds.NATS_JETSTREAM_CHANNEL else hub


def sink_uri(namespace: str, hub: str) -> str:
    return f"{SINK_SCHEME}://{namespace}/{hub}"
