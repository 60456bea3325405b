"""CloudEvents in the messages of brokers: headers and a body <-> events (CloudEvents' Kafka and AMQP bindings).

Attributes stand in headers with a prefix, as raw text: nothing is percent-encoded, other than over HTTP and NATS, whose
messages ``cloudevents`` reads and writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from relight.base.errors import BadInput
from relight.wire import cloudevents
from relight.wire.cloudevents import STRUCTURED, Event, Value
from relight.wire.http import Headers, media_type

KAFKA = "ce_"
AMQP = "ce-"
"""What Knative's RabbitMQ adapters write; the AMQP binding's own ``cloudEvents:`` and ``cloudEvents_`` are read too."""
AMQP_PREFIXES = (AMQP, "cloudEvents:", "cloudEvents_")


@dataclass(frozen=True, slots=True)
class Carrier:
    """What a message is to a binding: its headers, its media type, its body."""

    headers: Mapping[str, str]
    content_type: str | None
    body: bytes


def decode(carrier: Carrier, *prefixes: str) -> Event | None:
    """The CloudEvent that a message is; None where it is none. BadInput where it says that it is one, and is not."""
    if media_type(carrier.content_type).startswith("application/cloudevents"):
        return cloudevents.decode(Headers([("content-type", str(carrier.content_type))]), carrier.body)
    for prefix in prefixes:
        version = carrier.headers.get(f"{prefix}specversion")
        if version is not None:
            return _binary(carrier, prefix, version)
    return None


def _binary(carrier: Carrier, prefix: str, version: str) -> Event:
    if version != "1.0":
        raise BadInput(f"CloudEvents 1.0 was expected, got {version!r}", param="specversion")
    found: dict[str, Value] = {
        name.removeprefix(prefix).lower(): value for name, value in carrier.headers.items() if name.startswith(prefix)
    }
    del found["specversion"]
    # The media type of the message is that of the data; as an attribute of its own it is not to be written.
    found.pop("datacontenttype", None)
    if carrier.content_type:
        found["datacontenttype"] = carrier.content_type
    names = [str(found.pop(name, "")) for name in ("id", "source", "type")]
    return Event(names[0], names[1], names[2], found, carrier.body or None)


def encode_binary(event: Event, prefix: str) -> Carrier:
    """Attributes in headers, data as the body."""
    attributes = {"id": event.id, "source": event.source, "type": event.type, **event.attributes}
    attributes.pop("datacontenttype", None)
    headers = {f"{prefix}specversion": "1.0"}
    headers |= {f"{prefix}{name}": cloudevents.text_of(value) for name, value in attributes.items()}
    return Carrier(headers, event.content_type, event.data or b"")


def encode_structured(event: Event) -> Carrier:
    """The whole event as JSON in the body."""
    return Carrier({}, STRUCTURED, cloudevents.encode_structured(event)[1])
