"""Knative Serving's defaults and checks for Services, Configurations, Revisions and Routes.

Each default and each bound is what ``config-defaults`` and ``config-autoscaler`` say at the moment. Fields that need a
feature are refused until ``config-features`` enables it, as on a cluster, so that a manifest which works here works
there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from relight.decide import features as features_of
from relight.decide.annotations import validate_annotations
from relight.decide.defaults import ClusterDefaults
from relight.local.kube import names
from relight.local.kube.configs import RevisionDefaults
from relight.local.kube.webhooks import Fault, changes, disallowed, immutable, invalid, missing, out_of_bounds

RESERVED_ENV = ("PORT", "K_SERVICE", "K_CONFIGURATION", "K_REVISION")
_TIMEOUTS = ("timeoutSeconds", "responseStartTimeoutSeconds", "idleTimeoutSeconds")
_NAME_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:(?:localhost|[A-Za-z0-9-]*[.:][A-Za-z0-9.:-]*)/)?(?P<path>{_NAME_PART}(?:/{_NAME_PART})*)"
    r"(?::(?P<tag>[\w][\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_SHORTEST_IMAGE = 2


@dataclass(frozen=True)
class Rules:
    """What the cluster's ConfigMaps say at the moment."""

    features: Mapping[str, str] = field(default_factory=dict)
    revisions: RevisionDefaults = field(default_factory=RevisionDefaults)
    scaling: ClusterDefaults = field(default_factory=ClusterDefaults)


def default_revision(spec: dict[str, Any], defaults: RevisionDefaults) -> None:
    """Fill a revision's spec in place."""
    spec.setdefault("containerConcurrency", defaults.concurrency)
    if not spec.get("timeoutSeconds"):
        spec["timeoutSeconds"] = defaults.timeout
        if defaults.response_start_timeout != defaults.timeout:  # else it is implied, and a cluster leaves it out
            spec.setdefault("responseStartTimeoutSeconds", defaults.response_start_timeout)
        if defaults.idle_timeout:
            spec.setdefault("idleTimeoutSeconds", defaults.idle_timeout)
    if defaults.service_links is not None:
        spec.setdefault("enableServiceLinks", defaults.service_links)
    containers = [container for container in spec.get("containers") or () if isinstance(container, dict)]
    for index, container in enumerate(containers):
        if not container.get("name"):
            container["name"] = defaults.container if len(containers) == 1 else f"{defaults.container}-{index}"
        container.setdefault("resources", {})
        for port in container.get("ports") or ():
            port.setdefault("protocol", "TCP")
        if len(containers) == 1 or container.get("ports"):
            probe = container.setdefault("readinessProbe", {})
            if not any(handler in probe for handler in ("exec", "httpGet", "tcpSocket", "grpc")):
                probe["tcpSocket"] = {"port": 0}
            probe.setdefault("successThreshold", 1)


def default_template(spec: dict[str, Any], defaults: RevisionDefaults) -> None:
    """Fill the template of a Service or Configuration in place."""
    template = spec.setdefault("template", {})
    metadata = template.setdefault("metadata", {})
    for name in ("annotations", "labels"):
        if metadata.get(name) == {}:
            del metadata[name]
    default_revision(template.setdefault("spec", {}), defaults)


def default_traffic(spec: dict[str, Any], *, latest: bool) -> None:
    """Fill the traffic of a Service (``latest``: all to the latest revision if nothing is said) or Route in place."""
    if latest and not spec.get("traffic"):
        spec["traffic"] = [{"latestRevision": True, "percent": 100}]
    for target in spec.get("traffic") or ():
        target.setdefault("latestRevision", not target.get("revisionName"))


def check_service(name: str, spec: dict[str, Any], rules: Rules) -> Iterator[Fault]:
    yield from check_name(name)
    yield from check_template(name, spec.get("template") or {}, rules)
    yield from check_traffic(spec.get("traffic") or [], "spec.traffic", of_service=True)


def check_name(name: str) -> Iterator[Fault]:
    """A Service's name becomes a host name."""
    problems = names.dns1035(name)
    if problems:
        yield Fault(f"not a DNS 1035 label: [{' '.join(problems)}]", ("metadata.name",))


def check_template(name: str, template: dict[str, Any], rules: Rules) -> Iterator[Fault]:
    metadata = template.get("metadata") or {}
    at = "spec.template.metadata"
    yield from _annotation_faults(metadata.get("annotations") or {}, f"{at}.annotations", rules.scaling)
    revision = metadata.get("name")
    if revision:
        if names.dns1035(revision):
            yield Fault(f"not a DNS 1035 label prefix: [{' '.join(names.dns1035(revision))}]", (f"{at}.name",))
        if not revision.startswith(f"{name}-"):
            yield Fault(f'"{revision}" must have prefix "{name}-"', (f"{at}.name",))
    yield from check_revision(template.get("spec") or {}, "spec.template.spec", rules)


def _annotation_faults(annotations: dict[str, str], at: str, defaults: ClusterDefaults) -> Iterator[Fault]:
    for problem in validate_annotations(annotations, defaults, at=at):
        if problem.message.startswith("invalid value: 0, initial-scale"):
            yield invalid(0, f"{problem.path}=0 not allowed by cluster")
        else:
            yield Fault(problem.message, tuple(problem.path.split(", ")))


def check_revision(spec: dict[str, Any], at: str, rules: Rules) -> Iterator[Fault]:
    features, defaults = rules.features, rules.revisions
    concurrency = spec.get("containerConcurrency") or 0
    least = 0 if defaults.allow_unlimited else 1
    if not least <= concurrency <= defaults.max_concurrency:
        yield out_of_bounds(concurrency, least, defaults.max_concurrency, f"{at}.containerConcurrency")
    for name in _TIMEOUTS:
        if not 0 <= (spec.get(name) or 0) <= defaults.max_timeout:
            yield out_of_bounds(spec[name], 0, defaults.max_timeout, f"{at}.{name}")
    for name, feature in features_of.FIELDS.items():
        if spec.get(name) and features.get(feature, "disabled") == "disabled":
            yield disallowed(f"{at}.{name}")
    yield from _check_volumes(spec.get("volumes") or [], f"{at}.volumes", features)
    containers = spec.get("containers")
    if not containers:
        yield missing(f"{at}.containers")
        return
    for index, container in enumerate(containers):
        yield from _check_container(container, f"{at}.containers[{index}]")
    yield from _check_ports(containers, f"{at}.containers")
    for index, container in enumerate(containers):
        if not _is_image(container.get("image")) and container.get("image"):
            image = container["image"]
            details = f'image: "{image}", error: could not parse reference: {image}'
            yield Fault("Failed to parse image reference", (f"{at}.containers[{index}].image",), details)


def _is_image(image: object) -> bool:
    match = _IMAGE.fullmatch(image) if isinstance(image, str) else None
    return match is not None and len(match["path"]) >= _SHORTEST_IMAGE


def _check_container(container: dict[str, Any], at: str) -> Iterator[Fault]:
    if not container.get("image"):
        yield missing(f"{at}.image")
    name = container.get("name") or ""
    if name in ("queue-proxy",):
        yield Fault(f'"{name}" is a reserved container name', (f"{at}.name",))
    elif name and names.label(name):
        yield Fault(f"not a DNS 1123 label: [{' '.join(names.label(name))}]", (f"{at}.name",))
    seen: set[str] = set()
    for index, variable in enumerate(container.get("env") or ()):
        given, where = variable.get("name"), f"{at}.env[{index}]"
        if not given:
            yield missing(f"{where}.name")
        elif given in RESERVED_ENV:
            yield Fault(f'"{given}" is a reserved environment variable', (f"{where}.name",))
        elif given in seen:
            yield Fault(f'"{given}" is set more than once', (f"{where}.name",))
        seen.add(given or "")
        source = variable.get("valueFrom") or {}
        yield from (disallowed(f"{where}.valueFrom.{one}") for one in ("fieldRef", "resourceFieldRef") if one in source)


def _check_ports(containers: list[dict[str, Any]], at: str) -> Iterator[Fault]:
    ports = [port for container in containers for port in container.get("ports") or ()]
    if len(ports) > 1:
        yield Fault(
            "more than one container port is set",
            (f"{at}[*].ports",),
            "Only a single port is allowed across all containers",
        )
        return
    for index, container in enumerate(containers):
        for port in container.get("ports") or ():
            where = f"{at}[{index}].ports"
            if not 1 <= (port.get("containerPort") or 0) <= 65535:
                yield out_of_bounds(port.get("containerPort") or 0, 1, 65535, f"{where}.containerPort")
            if port.get("protocol") not in (None, "TCP"):
                yield invalid(port["protocol"], f"{where}.protocol")
            if port.get("name") not in (None, "", "h2c", "http1", "user-port"):
                details = "Name must be empty, or one of: 'h2c', 'http1', 'user-port'"
                yield Fault(f"Port name {port['name']} is not allowed", (where,), details)


def _check_volumes(volumes: list[Any], at: str, features: Mapping[str, str]) -> Iterator[Fault]:
    for index, volume in enumerate(volumes):
        where = f"{at}[{index}]"
        if not isinstance(volume, dict) or not volume.get("name"):
            yield missing(f"{where}.name")
            continue
        for source, (feature, default) in features_of.VOLUMES.items():
            if source in volume and features.get(feature, default) == "disabled":
                yield disallowed(f"{where}.{source}")


def check_traffic(traffic: list[dict[str, Any]], at: str, *, of_service: bool) -> Iterator[Fault]:
    total, tags = 0, dict[str, int]()
    for index, target in enumerate(traffic):
        where = f"{at}[{index}]"
        percent = target.get("percent") or 0
        total += percent
        if not 0 <= percent <= 100:
            yield out_of_bounds(percent, 0, 100, f"{where}.percent")
        revision = target.get("revisionName")
        if target.get("latestRevision") and revision:
            message = f'may not set revisionName "{revision}" when latestRevision is true'
            yield Fault(message, (f"{where}.latestRevision",))
        elif of_service and not target.get("latestRevision") and not revision:
            yield missing(f"{where}.revisionName")
        if of_service and target.get("configurationName"):
            yield disallowed(f"{where}.configurationName")
        if target.get("url"):
            yield disallowed(f"{where}.url")
        tag = target.get("tag")
        if tag:
            if names.label(tag):
                yield invalid(tag, f"{where}.tag")
            if tag in tags:
                yield Fault(f'Multiple definitions for "{tag}"', (f"{at}[{tags[tag]}].tag", f"{where}.tag"))
            tags.setdefault(tag, index)
    if traffic and total != 100:
        yield Fault(f"Traffic targets sum to {total}, want 100", (at,))


def check_revision_unchanged(old: dict[str, Any], new: dict[str, Any]) -> Iterator[Fault]:
    """A revision is a snapshot: its spec never changes."""
    diff = list(changes(old, new, "spec"))
    if diff:
        yield immutable("spec", "spec", diff=diff)


def check_template_renamed(old: dict[str, Any], new: dict[str, Any]) -> Iterator[Fault]:
    """A template that names its revision needs another name when it changes."""
    before, after = old.get("template") or {}, new.get("template") or {}
    name = (after.get("metadata") or {}).get("name")
    if name and name == (before.get("metadata") or {}).get("name") and before != after:
        lines = [
            f"{{{path}}}:\n\t-: {was!r}\n\t+: {now!r}" for path, was, now in changes(before, after, "spec.template")
        ]
        message = "Saw the following changes without a name change (-old +new)"
        yield Fault(message, ("spec.template.metadata.name",), "\n".join(lines) + "\n")
