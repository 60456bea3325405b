"""What happens to an object on its way in: types, unknown fields, defaults, then every check that its kind has.

Order and wording are the API server's and, for Knative's kinds, those of its webhooks, because people and tools know
these sentences. Nothing here stores anything.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from relight.local.kube import configs, eventing_rules, kinds, schema, serving_rules
from relight.local.kube.cascades import Object
from relight.local.kube.failures import Cause, Failure, bad_request, invalid
from relight.local.kube.kinds import Kind
from relight.local.kube.names import check_metadata
from relight.local.kube.serving_rules import Rules
from relight.local.kube.webhooks import Fault, cannot_decode, denied

FieldValidation = Literal["Strict", "Warn", "Ignore"]


@dataclass(frozen=True)
class Admission:
    """Who asks, and how strictly."""

    user: str
    validation: FieldValidation = "Warn"
    repeated: tuple[str, ...] = ()
    """What the body says twice, in the API server's words."""
    rules: Rules = field(default_factory=Rules)
    """What Knative's ConfigMaps say."""


@dataclass(frozen=True)
class Admitted:
    """The object as it is stored, and what the client should be warned of."""

    object: Object
    warnings: tuple[str, ...] = ()


def admit(kind: Kind, new: Object, old: Object | None, admission: Admission) -> Admitted:
    """Check and complete an object that is created (``old`` is None) or updated. Failure says what is wrong."""
    _check_shapes(kind, new)
    complaints = (*admission.repeated, *(f'unknown field "{path}"' for path in schema.unknown_fields(kind, new)))
    if complaints and admission.validation == "Strict":
        raise bad_request(f"{_cannot_be_handled(kind)}: strict decoding error: {', '.join(complaints)}")
    obj = schema.pruned(kind, new)
    _default(kind, obj, old, admission)
    name = obj["metadata"].get("name") or ""
    causes = check_metadata(kind, obj["metadata"])
    if causes:
        raise invalid(kind, name, causes)
    _check_body(kind, name, obj)
    faults = list(_faults(kind, obj, old, admission))
    if faults:
        raise denied(_webhook(kind), faults)
    if kind is kinds.CONFIG_MAP:
        _check_config(obj)
    warnings = complaints if admission.validation == "Warn" else ()
    if kind.treatment == "inert":
        warnings = (*warnings, f"{kind.kind} is stored, but not enforced in local mode")
    return Admitted(obj, warnings)


def _cannot_be_handled(kind: Kind) -> str:
    return f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}'


def _check_config(obj: Object) -> None:
    metadata = obj["metadata"]
    found = configs.problems(metadata.get("namespace", ""), metadata["name"], obj.get("data") or {})
    if found:
        raise denied(
            "serving.knative.dev", (Fault(problem.message, (f"data.{problem.path}",)) for problem in found), "config"
        )


def _webhook(kind: Kind) -> str:
    serving = kind.group in ("serving.knative.dev", "autoscaling.internal.knative.dev")
    return "serving.knative.dev" if serving else "eventing.knative.dev"


def _check_shapes(kind: Kind, obj: Object) -> None:
    for path, found, expected in schema.wrong_types(kind, obj):
        if kind.custom and not path.startswith("metadata"):
            raise cannot_decode(_webhook(kind), found, path, expected)
        raise bad_request(
            f"{_cannot_be_handled(kind)}: json: cannot unmarshal {found} into field {path} of type {expected}"
        )


def _default(kind: Kind, obj: Object, old: Object | None, admission: Admission) -> None:
    metadata = obj["metadata"]
    for name in ("labels", "annotations"):
        if name in metadata and not metadata[name]:
            del metadata[name]
    if kind in (kinds.SERVICE, kinds.CONFIGURATION):
        serving_rules.default_template(obj.setdefault("spec", {}), admission.rules.revisions)
    if kind in (kinds.SERVICE, kinds.ROUTE):
        serving_rules.default_traffic(obj.setdefault("spec", {}), latest=kind is kinds.SERVICE)
    elif kind is kinds.REVISION:
        serving_rules.default_revision(obj.setdefault("spec", {}), admission.rules.revisions)
    elif kind is kinds.BROKER:
        eventing_rules.default_broker(obj)
    elif kind is kinds.TRIGGER:
        eventing_rules.default_trigger(obj)
    elif kind is kinds.SECRET:
        obj.setdefault("type", "Opaque")
        for name, value in (obj.pop("stringData", None) or {}).items():
            obj.setdefault("data", {})[name] = base64.b64encode(value.encode()).decode()
    if kind in (kinds.SERVICE, kinds.BROKER, kinds.TRIGGER):
        _default_people(kind, obj, old, admission.user)


def _default_people(kind: Kind, obj: Object, old: Object | None, user: str) -> None:
    """Knative's creator and lastModifier. Left out in an update, they stay: replacing a manifest may not fail."""
    creator, modifier = f"{kind.group}/creator", f"{kind.group}/lastModifier"
    annotations = dict(obj["metadata"].get("annotations") or {})
    if old is None:
        annotations |= {creator: user, modifier: user}
    else:
        was = old["metadata"].get("annotations") or {}
        for name in (creator, modifier):
            if name in was:
                annotations.setdefault(name, was[name])
        if old.get("spec") != obj.get("spec"):
            annotations[modifier] = user
    obj["metadata"]["annotations"] = annotations


def _check_body(kind: Kind, name: str, obj: Object) -> None:
    if kind in (kinds.SERVICE, kinds.CONFIGURATION):
        if not isinstance(obj["spec"]["template"]["spec"].get("containers"), list):
            at = "spec.template.spec.containers"
            why = f'Invalid value: "null": {at} in body must be of type array: "null"'
            raise invalid(kind, name, [Cause(at, why, "FieldValueTypeInvalid")])
    elif kind is kinds.SECRET:
        for key, value in (obj.get("data") or {}).items():
            try:
                base64.b64decode(value, validate=True)
            except binascii.Error:
                raise bad_request(f"{_cannot_be_handled(kind)}: illegal base64 data in data.{key}") from None


def _faults(kind: Kind, obj: Object, old: Object | None, admission: Admission) -> Iterator[Fault]:
    name, spec = obj["metadata"]["name"], obj.get("spec") or {}
    before = (old or {}).get("spec") or {}
    if old is not None:
        yield from _people_changed(kind, obj, old)
    if kind is kinds.SERVICE:
        yield from serving_rules.check_service(name, spec, admission.rules)
    elif kind is kinds.CONFIGURATION:
        yield from serving_rules.check_name(name)
        yield from serving_rules.check_template(name, spec["template"], admission.rules)
    elif kind is kinds.REVISION:
        if old is None:
            yield from serving_rules.check_revision(spec, "spec", admission.rules)
        else:
            yield from serving_rules.check_revision_unchanged(before, spec)
    elif kind is kinds.ROUTE:
        yield from serving_rules.check_traffic(spec.get("traffic") or [], "spec.traffic", of_service=False)
    elif kind is kinds.BROKER:
        yield from eventing_rules.check_broker(spec)
    elif kind is kinds.TRIGGER:
        yield from eventing_rules.check_trigger(spec)
        yield from eventing_rules.check_annotations(obj["metadata"].get("annotations"))
        if old is not None:
            yield from eventing_rules.check_trigger_unchanged(before, spec)
    elif kind is kinds.SUBSCRIPTION:
        yield from eventing_rules.check_annotations(obj["metadata"].get("annotations"))
    elif kind is kinds.PING_SOURCE:
        yield from eventing_rules.check_ping_source(spec)
    elif kind is kinds.SEQUENCE:
        yield from eventing_rules.check_sequence(spec)
    if old is not None and kind in (kinds.SERVICE, kinds.CONFIGURATION):
        yield from serving_rules.check_template_renamed(before, spec)


def _people_changed(kind: Kind, obj: Object, old: Object) -> Iterator[Fault]:
    name = f"{kind.group}/creator"
    was = (old["metadata"].get("annotations") or {}).get(name)
    if was is not None and (obj["metadata"].get("annotations") or {}).get(name) != was:
        yield Fault("annotation value is immutable", (f"metadata.annotations.{name}",))


__all__ = ["Admission", "Admitted", "Failure", "FieldValidation", "admit"]
