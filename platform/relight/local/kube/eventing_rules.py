"""Knative Eventing's defaults and checks for Brokers and Triggers, and the few of flows and sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from relight.base.errors import BadInput, Problem
from relight.base.units import parse_iso_duration
from relight.decide import filters as dialects
from relight.decide import triggering
from relight.decide.schedule import Schedule
from relight.local.kube.webhooks import Fault, immutable, invalid, missing, needs_one_of

BROKER_CLASS = "eventing.knative.dev/broker.class"
DEFAULT_CLASS = "MTChannelBasedBroker"
_DEFAULT_DELIVERY = {"backoffDelay": "PT0.2S", "backoffPolicy": "exponential", "retry": 10}
_DEFAULT_CONFIG = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "name": "config-br-default-channel",
    "namespace": "knative-eventing",
}
_DIALECTS = ("exact", "prefix", "suffix", "all", "any", "not", "cesql")


def default_broker(obj: dict[str, Any]) -> None:
    """Fill a Broker in place: class, configuration and delivery, as Knative's shipped ``config-br-defaults``."""
    metadata = obj["metadata"]
    metadata["annotations"] = {BROKER_CLASS: DEFAULT_CLASS, **(metadata.get("annotations") or {})}
    spec = obj.setdefault("spec", {})
    spec.setdefault("config", dict(_DEFAULT_CONFIG))
    spec.setdefault("delivery", dict(_DEFAULT_DELIVERY))
    _default_destination((spec.get("delivery") or {}).get("deadLetterSink"), metadata["namespace"])


def default_trigger(obj: dict[str, Any]) -> None:
    """Fill a Trigger in place: the broker's label, and its own namespace in references."""
    metadata, spec = obj["metadata"], obj.setdefault("spec", {})
    broker = spec.get("broker") or (spec.get("brokerRef") or {}).get("name")
    if broker:
        metadata["labels"] = {**(metadata.get("labels") or {}), "eventing.knative.dev/broker": broker}
    _default_destination(spec.get("subscriber"), metadata["namespace"])
    _default_destination((spec.get("delivery") or {}).get("deadLetterSink"), metadata["namespace"])


def _default_destination(destination: Any, namespace: str) -> None:
    reference = (destination or {}).get("ref")
    if reference and not reference.get("namespace"):
        reference["namespace"] = namespace


def check_broker(spec: dict[str, Any]) -> Iterator[Fault]:
    yield from check_delivery(spec.get("delivery"), "spec.delivery")


def check_trigger(spec: dict[str, Any]) -> Iterator[Fault]:
    if not spec.get("broker") and not spec.get("brokerRef"):
        yield missing("spec.broker")
    yield from _check_filters(spec.get("filters") or [])
    attributes = (spec.get("filter") or {}).get("attributes") or {}
    for problem in dialects.validate_attributes(attributes):
        yield Fault(f"invalid value: {problem.message}", (problem.path,))
    yield from check_destination(spec.get("subscriber"), "spec.subscriber")
    yield from check_delivery(spec.get("delivery"), "spec.delivery")


def check_annotations(annotations: dict[str, str] | None) -> Iterator[Fault]:
    """Of a Trigger or a Subscription. Knative lets anything pass; here a Trigger that cannot be built would get no
    events, so that a slip in an annotation would lose those that are accepted meanwhile."""
    problems: list[Problem] = []
    triggering.read(annotations or {}, problems)
    for problem in problems:
        yield Fault(f"invalid value: {problem.message}", (problem.path,))


def check_trigger_unchanged(old: dict[str, Any], new: dict[str, Any]) -> Iterator[Fault]:
    """A Trigger stays with its broker."""
    if old.get("broker") != new.get("broker"):
        yield immutable("string", "spec", "broker", diff=[("string", old.get("broker"), new.get("broker"))])


def _check_filters(filters: list[Any]) -> Iterator[Fault]:
    for problem in dialects.validate(filters):
        found = _at(filters, problem.path)
        if isinstance(found, dict) and sum(dialect in found for dialect in _DIALECTS) > 1:
            yield Fault("multiple dialects found, filters can have only one dialect set")
        elif isinstance(found, str):
            # Knative names the value and the field; where in an expression the mistake is stands on a line below.
            yield Fault(f"invalid value: {found}", (problem.path,), problem.message)
        else:
            yield Fault(f"invalid value: {problem.message}", (problem.path,))


def _at(filters: list[Any], path: str) -> Any:
    """The value at a path such as ``spec.filters[0].any[1].cesql``; None where there is none."""
    found: Any = filters
    for step in path.removeprefix("spec.filters").replace("[", ".[").strip(".").split("."):
        if step.startswith("[") and isinstance(found, list):
            index = int(step.strip("[]"))
            found = found[index] if index < len(found) else None
        elif isinstance(found, dict):
            found = found.get(step)
    return found


def check_destination(destination: dict[str, Any] | None, at: str) -> Iterator[Fault]:
    """A reference to an object, a URI, or both (then the URI is relative to the object's address)."""
    destination = destination or {}
    reference, uri = destination.get("ref"), destination.get("uri")
    if not reference and not uri:
        yield needs_one_of(f"{at}.ref", f"{at}.uri")
        return
    if reference:
        for field in ("name", "kind", "apiVersion"):
            if not reference.get(field):
                yield missing(f"{at}.ref.{field}")
        return
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        yield Fault(f"invalid value: {uri}", (f"{at}.uri",), str(error))
        return
    if not (parts.scheme and parts.netloc):
        message = "Relative URI is not allowed when Ref and [apiVersion, kind, name] is absent"
        yield Fault(f"invalid value: {message}", (f"{at}.uri",))


def check_ping_source(spec: dict[str, Any]) -> Iterator[Fault]:
    fields = str(spec.get("schedule") or "").split()
    if not 5 <= len(fields) <= 6:
        yield invalid(f"expected 5 to 6 fields, found {len(fields)}: [{' '.join(fields)}]", "spec.schedule")
    else:
        try:
            Schedule.of(str(spec["schedule"]), spec.get("timezone"))
        except BadInput as error:
            for problem in error.problems:
                yield invalid(problem.message, problem.path)
    yield from check_destination(spec.get("sink"), "spec.sink")


def check_sequence(spec: dict[str, Any]) -> Iterator[Fault]:
    if not spec.get("steps"):
        yield missing("spec.steps")


def check_delivery(delivery: dict[str, Any] | None, at: str) -> Iterator[Fault]:
    if not delivery:
        return
    if (delivery.get("retry") or 0) < 0:
        yield invalid(delivery["retry"], f"{at}.retry")
    if delivery.get("backoffPolicy") not in (None, "linear", "exponential"):
        yield invalid(delivery["backoffPolicy"], f"{at}.backoffPolicy")
    if delivery.get("format") not in (None, "json", "binary"):
        yield invalid(delivery["format"], f"{at}.format")
    for field in ("backoffDelay", "timeout", "retryAfterMax"):
        value = delivery.get(field)
        if value is None:
            continue
        try:
            seconds = parse_iso_duration(value)
        except ValueError:
            yield invalid(value, f"{at}.{field}")
        else:
            if field == "timeout" and seconds == 0:
                yield invalid(value, f"{at}.{field}")
    if "deadLetterSink" in delivery:
        yield from check_destination(delivery["deadLetterSink"], f"{at}.deadLetterSink")
