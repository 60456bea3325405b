"""Statuses as Knative writes them: of Brokers and Triggers (MT channel-based), channels, Subscriptions and flows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from relight.local.conditions import Condition, is_true, render, summary
from relight.local.eventing.addressing import Address

_NO_SINK = ("DeadLetterSinkNotConfigured", "No dead letter sink is configured.")
_NO_OIDC = 'Feature "authentication-oidc" must be enabled to support Authorization'


def _sink(address: Address | None, info: bool = False) -> Condition:
    """The condition of a dead-letter sink; None: none is asked for."""
    name = "DeadLetterSinkResolved"
    if address is None:
        return Condition(name, "True", *_NO_SINK, info=info)
    if address.url is None:
        return Condition(name, "False", "Unable to get the dead letter sink's URI", address.reason)
    return Condition(name, "True")


def _status(obj: Mapping[str, Any], conditions: list[Condition], now: str) -> dict[str, Any]:
    before = (obj.get("status") or {}).get("conditions") or []
    return {
        "conditions": render([*conditions, summary(conditions)], before, now),
        "observedGeneration": obj["metadata"].get("generation", 1),
    }


def of_broker(
    broker: Mapping[str, Any], url: str, sink: Address | None, now: str, *, unchecked: str | None = None
) -> dict[str, Any]:
    """The status of a Broker whose ingress listens at ``url``. ``unchecked``: why it cannot validate as asked."""
    conditions = [
        Condition("Addressable", "True"),
        _sink(sink, info=True),
        Condition("EventPoliciesReady", "True", "OIDCDisabled", _NO_OIDC),
        Condition("FilterReady", "True"),
        Condition("IngressReady", "True"),
        Condition("TriggerChannelReady", "True"),
    ]
    if unchecked is not None:
        conditions.append(Condition("ValidationReady", "False", "NoSchemas", unchecked, info=True))
    status = _status(broker, conditions, now) | {"address": {"name": "http", "url": url}}
    if sink is not None and sink.url:
        status["deadLetterSinkUri"] = sink.url
    return status


def of_trigger(
    trigger: Mapping[str, Any],
    broker: Mapping[str, Any] | None,
    subscriber: Address,
    sink: Address | None,
    problem: str | None,
    now: str,
    *,
    paused: bool = False,
) -> dict[str, Any]:
    """The status of a Trigger. ``problem``: why it cannot be built (then it gets no events)."""
    name = (trigger.get("spec") or {}).get("broker") or "default"
    if broker is None:
        on_broker = Condition("BrokerReady", "False", "BrokerDoesNotExist", f'Broker "{name}" does not exist')
    elif is_true(broker):
        on_broker = Condition("BrokerReady", "True")
    else:
        on_broker = Condition("BrokerReady", "Unknown", "BrokerNotReady", f'Broker "{name}" is not ready')
    if subscriber.url is None:
        resolved = Condition("SubscriberResolved", "False", "Unable to get the Subscriber's URI", subscriber.reason)
    else:
        resolved = Condition("SubscriberResolved", "True")
    if problem is None:
        subscribed = Condition("SubscriptionReady", "True")
    else:
        subscribed = Condition("SubscriptionReady", "False", "InvalidTrigger", problem)
    conditions = [
        on_broker,
        _sink(sink),
        Condition("DependencyReady", "True"),
        Condition("OIDCIdentityCreated", "True", "authentication-oidc feature disabled"),
        resolved,
        subscribed,
    ]
    if paused:
        why = "The annotation relight.dev/paused holds all deliveries back."
        conditions.append(Condition("Paused", "True", "Paused", why, info=True))
    status = _status(trigger, conditions, now)
    if subscriber.url is not None:
        status["subscriberUri"] = subscriber.url
    if sink is not None and sink.url is not None:
        status["deadLetterSinkUri"] = sink.url
    return status


def of_channel(channel: Mapping[str, Any], url: str, sink: Address | None, now: str) -> dict[str, Any]:
    """The status of a Channel or an InMemoryChannel whose ingress listens at ``url``."""
    parts = ("BackingChannelReady",) if channel["kind"] == "Channel" else _IN_MEMORY_PARTS
    conditions = [Condition("Addressable", "True"), _sink(sink), *(Condition(part, "True") for part in parts)]
    status = _status(channel, conditions, now) | {"address": {"name": "http", "url": url}}
    if sink is not None and sink.url:
        status["deadLetterSinkUri"] = sink.url
    return status


def of_stream_channel(
    channel: Mapping[str, Any],
    url: str,
    sink: Address | None,
    problem: str | None,
    now: str,
    feed: Condition | None,
) -> dict[str, Any]:
    """The status of a NatsJetStreamChannel: the stream is ready once it is read from."""
    if problem is not None or feed is None:
        why = problem or "The stream is not reached yet."
        stream = Condition("StreamReady", "False", "InvalidChannel" if problem else "Connecting", why)
    else:
        stream = Condition("StreamReady", feed.status, feed.reason, feed.message)
    conditions = [Condition("Addressable", "True"), Condition("DispatcherReady", "True"), _sink(sink), stream]
    status = _status(channel, conditions, now) | {"address": {"name": "http", "url": url}}
    if sink is not None and sink.url:
        status["deadLetterSinkUri"] = sink.url
    return status


def of_sink(sink: Mapping[str, Any], url: str, problem: str | None, now: str) -> dict[str, Any]:
    """The status of a KafkaSink or a RedisStreamSink that takes events at ``url``."""
    taking = Condition("Deployed", "True")
    if problem is not None:
        taking = Condition("Deployed", "False", "InvalidSink", problem)
    return _status(sink, [Condition("Addressable", "True"), taking], now) | {"address": {"name": "http", "url": url}}


_IN_MEMORY_PARTS = ("ChannelServiceReady", "DispatcherReady", "EndpointsReady", "ServiceReady")


def of_subscription(
    subscription: Mapping[str, Any],
    channel: Mapping[str, Any] | None,
    subscriber: Address | None,
    reply: Address | None,
    sink: Address | None,
    problem: str | None,
    now: str,
) -> dict[str, Any]:
    """The status of a Subscription; an address is None where none is asked for."""
    named = (subscription.get("spec") or {}).get("channel") or {}
    if problem is not None:
        on_channel = Condition("ChannelReady", "False", "InvalidSubscription", problem)
    elif channel is None:
        reason = f"Failed to get the channel {named.get('kind')} {named.get('name')}: not found"
        on_channel = Condition("ChannelReady", "False", "ChannelDoesNotExist", reason)
    else:
        on_channel = Condition("ChannelReady", "True")
    resolved = Condition("ReferencesResolved", "True")
    physical: dict[str, Any] = {}
    for field, what, address in (
        ("subscriberUri", "Subscriber", subscriber),
        ("replyUri", "Reply", reply),
        ("deadLetterSinkUri", "DeadLetterSink", sink),
    ):
        if address is None:
            continue
        if address.url is None:
            resolved = Condition("ReferencesResolved", "False", f"{what}ResolveFailed", address.reason)
        else:
            physical[field] = address.url
    added = Condition("AddedToChannel", on_channel.status, on_channel.reason, on_channel.message)
    oidc = Condition("OIDCIdentityCreated", "True", "authentication-oidc feature disabled")
    return _status(subscription, [added, on_channel, oidc, resolved], now) | {"physicalSubscription": physical}


def of_source(
    source: Mapping[str, Any],
    sink: Address,
    problem: str | None,
    attributes: Sequence[tuple[str, str]],
    now: str,
    deployed: Condition | None = None,
) -> dict[str, Any]:
    """The status of a source. ``attributes``: (type, source) of its events; ``deployed`` where it is not simply so."""
    if problem is not None:
        deployed = Condition("Deployed", "False", "InvalidSource", problem)
    if sink.url is None:
        provided = Condition("SinkProvided", "False", "NotFound", sink.reason)
    else:
        provided = Condition("SinkProvided", "True")
    oidc = Condition("OIDCIdentityCreated", "True", "authentication-oidc feature disabled")
    status = _status(source, [deployed or Condition("Deployed", "True"), oidc, provided], now)
    status["ceAttributes"] = [{"type": type_, "source": where} for type_, where in attributes]
    if sink.url is not None:
        status["sinkUri"] = sink.url
    return status


Objects = Sequence[Mapping[str, Any]]


def of_sequence(
    flow: Mapping[str, Any], channels: Objects, subscriptions: Objects, problem: Condition | None, now: str
) -> dict[str, Any]:
    """The status of a Sequence from the channels and Subscriptions that it consists of."""
    status = _of_flow(flow, channels, subscriptions, problem, now, waiting="Unknown")
    return status | {
        "channelStatuses": [{"channel": _reference(one), "ready": _ready(one)} for one in channels],
        "subscriptionStatuses": [{"subscription": _reference(one), "ready": _ready(one)} for one in subscriptions],
    }


def of_parallel(
    flow: Mapping[str, Any], channels: Objects, subscriptions: Objects, problem: Condition | None, now: str
) -> dict[str, Any]:
    """The status of a Parallel: the first channel is its ingress; Subscriptions are pairs of filter and step."""
    status = _of_flow(flow, channels, subscriptions, problem, now, waiting="False")
    ingress, *branches = channels
    return status | {
        "ingressChannelStatus": {"channel": _reference(ingress), "ready": _ready(ingress)},
        "branchStatuses": [
            {
                "filterSubscriptionStatus": {"subscription": _reference(before), "ready": _ready(before)},
                "filterChannelStatus": {"channel": _reference(channel), "ready": _ready(channel)},
                "subscriptionStatus": {"subscription": _reference(after), "ready": _ready(after)},
            }
            for channel, before, after in zip(branches, subscriptions[::2], subscriptions[1::2], strict=True)
        ],
    }


def _of_flow(
    flow: Mapping[str, Any],
    channels: Objects,
    subscriptions: Objects,
    problem: Condition | None,
    now: str,
    *,
    waiting: Literal["Unknown", "False"],
) -> dict[str, Any]:
    address = ((channels[0].get("status") or {}).get("address") or {}).get("url") if channels else None
    conditions = []
    for name, parts in (("Channels", channels), ("Subscriptions", subscriptions)):
        if parts and all(is_true(part) for part in parts):
            conditions.append(Condition(f"{name}Ready", "True"))
        else:
            why = f"{name} are not ready yet, or there are none"
            conditions.append(Condition(f"{name}Ready", waiting, f"{name}NotReady", why))
    if address:
        conditions.append(Condition("Addressable", "True"))
    else:
        conditions.append(Condition("Addressable", waiting, "emptyAddress", "addressable is nil"))
    if problem is not None:
        conditions = [problem, *(one for one in conditions if one.type != problem.type)]
    return _status(flow, conditions, now) | ({"address": {"url": address}} if address else {})


def _reference(obj: Mapping[str, Any]) -> dict[str, Any]:
    metadata = obj["metadata"]
    return {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "name": metadata["name"],
        "namespace": metadata["namespace"],
    }


def _ready(obj: Mapping[str, Any]) -> dict[str, Any]:
    """The Ready condition of a part, as its flow repeats it."""
    for row in (obj.get("status") or {}).get("conditions") or ():
        if row.get("type") == "Ready":
            return dict(row)
    message = f"{obj['kind']} does not have Ready condition"
    return {"type": "Ready", "status": "Unknown", "reason": "NoReady", "message": message}
