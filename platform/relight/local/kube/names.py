"""What names, labels and annotations may look like, in the API server's own words."""

from __future__ import annotations

import re
from typing import Any

from relight.local.kube.failures import Cause
from relight.local.kube.kinds import NAMESPACE, Kind

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_DNS1035 = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"

SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    f"end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    f"an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
DNS1035_RULE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    f"and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '{_DNS1035}')"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_NAME_PART_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
ANNOTATIONS_LIMIT = 256 * 1024
"""Bytes of all annotations together; the API server's limit, for whoever stores whole manifests in one."""


def subdomain(name: str) -> list[str]:
    """What is wrong with a name of most kinds (RFC 1123 subdomain, up to 253 characters)."""
    return _problems(name, 253, _SUBDOMAIN, SUBDOMAIN_RULE)


def label(name: str) -> list[str]:
    """What is wrong with an RFC 1123 label."""
    return _problems(name, 63, _LABEL, LABEL_RULE)


def dns1035(name: str) -> list[str]:
    """What is wrong with a name that becomes a host name of its own (Knative Services, native Services)."""
    return _problems(name, 63, _DNS1035, DNS1035_RULE)


def _problems(name: str, limit: int, pattern: str, rule: str) -> list[str]:
    problems = [] if len(name) <= limit else [f"must be no more than {limit} characters"]
    return problems if re.fullmatch(pattern, name) else [*problems, rule]


def _path_segment(name: str) -> list[str]:
    if name in (".", ".."):
        return [f"may not be '{name}'"]
    return [f"may not contain '{sign}'" for sign in "/%" if sign in name]


def check_metadata(kind: Kind, metadata: dict[str, Any]) -> list[Cause]:
    """Name, labels and annotations of an object."""
    causes: list[Cause] = []
    name = metadata.get("name") or ""
    if not name:
        causes.append(Cause.required("metadata.name", "name or generateName is required"))
    else:
        check = _name_check(kind)
        causes += [Cause.invalid("metadata.name", name, why) for why in check(name)]
    for key, value in (metadata.get("labels") or {}).items():
        causes += [Cause.invalid("metadata.labels", key, why) for why in _qualified(key)]
        if len(value) > 63:
            causes.append(Cause.invalid("metadata.labels", value, "must be no more than 63 characters"))
        if value and not re.fullmatch(_QUALIFIED, value):
            causes.append(Cause.invalid("metadata.labels", value, _VALUE_RULE))
    annotations = metadata.get("annotations") or {}
    for key in annotations:
        causes += [Cause.invalid("metadata.annotations", key, why) for why in _qualified(key.lower())]
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > ANNOTATIONS_LIMIT:
        why = f"Too long: may not be more than {ANNOTATIONS_LIMIT} bytes"
        causes.append(Cause("metadata.annotations", why, "FieldValueTooLong"))
    return causes


def _name_check(kind: Kind) -> Any:
    if kind.group == "rbac.authorization.k8s.io":
        return _path_segment
    if kind is NAMESPACE:
        return label
    if (kind.group, kind.plural) == ("", "services"):
        return dns1035
    return subdomain


def _qualified(key: str) -> list[str]:
    prefix, slash, name = key.rpartition("/")
    problems = [f"prefix part {why}" for why in subdomain(prefix)] if slash else []
    if not name:
        return [*problems, "name part must be non-empty"]
    if len(name) > 63:
        problems.append("name part must be no more than 63 characters")
    return problems if re.fullmatch(_QUALIFIED, name) else [*problems, _NAME_PART_RULE]
