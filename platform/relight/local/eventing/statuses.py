"""The status of Brokers and Triggers, with the conditions that Knative's MT channel-based broker writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def of_broker(broker: Mapping[str, Any], url: str, sink: Address | None, now: str) -> dict[str, Any]:
    """The status of a Broker whose ingress listens at ``url``."""
    conditions = [
        Condition("Addressable", "True"),
        _sink(sink, info=True),
        Condition("EventPoliciesReady", "True", "OIDCDisabled", _NO_OIDC),
        Condition("FilterReady", "True"),
        Condition("IngressReady", "True"),
        Condition("TriggerChannelReady", "True"),
    ]
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
    status = _status(trigger, conditions, now)
    if subscriber.url is not None:
        status["subscriberUri"] = subscriber.url
    if sink is not None and sink.url is not None:
        status["deadLetterSinkUri"] = sink.url
    return status
