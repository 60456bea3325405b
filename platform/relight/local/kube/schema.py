"""Which fields the acted-on kinds have, in a compact table, and what follows from it.

A dict is an object with those fields, a one-element list a list, a string a type: ``string``, ``integer``,
``boolean``, ``number``, ``map`` (string to string), ``intstr``, ``any`` (whatever is below it is kept). Kinds that are
not in the table are kept as they come. Fields follow Knative's custom resource definitions, in our order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from relight.local.kube import kinds
from relight.local.kube.kinds import Kind

Schema = str | dict[str, Any] | list[Any]

_REFERENCE: Schema = {"apiVersion": "string", "kind": "string", "name": "string", "namespace": "string"}
_DESTINATION: Schema = {"ref": _REFERENCE, "uri": "string", "CACerts": "string", "audience": "string"}
_DELIVERY: Schema = {
    "retry": "integer",
    "backoffPolicy": "string",
    "backoffDelay": "string",
    "timeout": "string",
    "retryAfterMax": "string",
    "format": "string",
    "deadLetterSink": _DESTINATION,
}
_PROBE: Schema = {
    "exec": {"command": ["string"]},
    "httpGet": {
        "host": "string",
        "httpHeaders": [{"name": "string", "value": "string"}],
        "path": "string",
        "port": "intstr",
        "scheme": "string",
    },
    "tcpSocket": {"host": "string", "port": "intstr"},
    "grpc": {"port": "integer", "service": "string"},
    "initialDelaySeconds": "integer",
    "periodSeconds": "integer",
    "timeoutSeconds": "integer",
    "successThreshold": "integer",
    "failureThreshold": "integer",
}
_KEY_OF: Schema = {"name": "string", "key": "string", "optional": "boolean"}
_CONTAINER: Schema = {
    "name": "string",
    "image": "string",
    "imagePullPolicy": "string",
    "command": ["string"],
    "args": ["string"],
    "workingDir": "string",
    "env": [
        {
            "name": "string",
            "value": "string",
            "valueFrom": {
                "configMapKeyRef": _KEY_OF,
                "secretKeyRef": _KEY_OF,
                "fieldRef": "any",
                "resourceFieldRef": "any",
            },
        }
    ],
    "envFrom": [
        {
            "prefix": "string",
            "configMapRef": {"name": "string", "optional": "boolean"},
            "secretRef": {"name": "string", "optional": "boolean"},
        }
    ],
    "ports": [{"name": "string", "containerPort": "integer", "protocol": "string"}],
    "resources": {"limits": "quantities", "requests": "quantities"},
    "readinessProbe": _PROBE,
    "livenessProbe": _PROBE,
    "startupProbe": _PROBE,
    "securityContext": "any",
    "terminationMessagePath": "string",
    "terminationMessagePolicy": "string",
    "volumeMounts": [
        {
            "name": "string",
            "mountPath": "string",
            "mountPropagation": "string",
            "subPath": "string",
            "readOnly": "boolean",
        }
    ],
}
_REVISION: Schema = {
    "containerConcurrency": "integer",
    "timeoutSeconds": "integer",
    "responseStartTimeoutSeconds": "integer",
    "idleTimeoutSeconds": "integer",
    "containers": [_CONTAINER],
    "initContainers": ["any"],
    "volumes": ["any"],
    "enableServiceLinks": "boolean",
    "automountServiceAccountToken": "boolean",
    "serviceAccountName": "string",
    "imagePullSecrets": [{"name": "string"}],
    "nodeSelector": "map",
    "tolerations": ["any"],
    "affinity": "any",
    "topologySpreadConstraints": ["any"],
    "runtimeClassName": "string",
    "priorityClassName": "string",
    "schedulerName": "string",
    "securityContext": "any",
    "shareProcessNamespace": "boolean",
    "dnsConfig": "any",
    "dnsPolicy": "string",
    "hostAliases": ["any"],
    "hostIPC": "boolean",
    "hostNetwork": "boolean",
    "hostPID": "boolean",
}
_TRAFFIC: Schema = [
    {
        "tag": "string",
        "revisionName": "string",
        "configurationName": "string",
        "latestRevision": "boolean",
        "percent": "integer",
        "url": "string",
    }
]
_TEMPLATE: Schema = {
    "metadata": {
        "name": "string",
        "namespace": "string",
        "annotations": "map",
        "labels": "map",
        "finalizers": ["string"],
    },
    "spec": _REVISION,
}
_FILTER: Schema = {
    "exact": "map",
    "prefix": "map",
    "suffix": "map",
    "all": ["any"],
    "any": ["any"],
    "not": "any",
    "cesql": "string",
}

SPECS: dict[Kind, dict[str, Schema]] = {
    kinds.SERVICE: {"spec": {"template": _TEMPLATE, "traffic": _TRAFFIC}},
    kinds.CONFIGURATION: {"spec": {"template": _TEMPLATE}},
    kinds.REVISION: {"spec": _REVISION},
    kinds.ROUTE: {"spec": {"traffic": _TRAFFIC}},
    kinds.POD_AUTOSCALER: {
        "spec": {
            "containerConcurrency": "integer",
            "protocolType": "string",
            "reachability": "string",
            "scaleTargetRef": {"apiVersion": "string", "kind": "string", "name": "string"},
        }
    },
    kinds.BROKER: {"spec": {"config": _REFERENCE, "delivery": _DELIVERY}},
    kinds.TRIGGER: {
        "spec": {
            "broker": "string",
            "brokerRef": _REFERENCE,
            "filter": {"attributes": "map"},
            "filters": [_FILTER],
            "subscriber": _DESTINATION,
            "delivery": _DELIVERY,
        }
    },
    kinds.PING_SOURCE: {
        "spec": {
            "schedule": "string",
            "timezone": "string",
            "contentType": "string",
            "data": "string",
            "dataBase64": "string",
            "sink": _DESTINATION,
            "ceOverrides": "any",
        }
    },
    kinds.SEQUENCE: {"spec": {"steps": ["any"], "reply": _DESTINATION, "channelTemplate": "any"}},
    kinds.CONFIG_MAP: {"data": "map", "binaryData": "map", "immutable": "boolean"},
    kinds.SECRET: {"data": "map", "stringData": "map", "type": "string", "immutable": "boolean"},
    kinds.NAMESPACE: {"spec": {"finalizers": ["string"]}},
}
METADATA: dict[str, Schema] = {
    "name": "string",
    "namespace": "string",
    "generateName": "string",
    "labels": "map",
    "annotations": "map",
    "finalizers": ["string"],
    "ownerReferences": ["any"],
    "managedFields": ["any"],
    "resourceVersion": "string",
    "uid": "string",
    "generation": "integer",
    "creationTimestamp": "any",
    "deletionTimestamp": "any",
    "deletionGracePeriodSeconds": "any",
    "selfLink": "string",
}

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "map": (dict,),
    "quantities": (dict,),
    "intstr": (int, str),
}
_GO_NAMES = {dict: "object", list: "array", str: "string", int: "number", float: "number", bool: "bool"}


def schema(kind: Kind) -> dict[str, Schema] | None:
    """All fields of a kind; None for one that is kept as it comes."""
    fields = SPECS.get(kind)
    if fields is None:
        return None
    return {"apiVersion": "string", "kind": "string", "metadata": METADATA, "status": "any", **fields}


def unknown_fields(kind: Kind, obj: Any) -> list[str]:
    """Paths of fields that the kind does not have, such as ``spec.bogus``."""
    whole = schema(kind) or {"metadata": METADATA}
    found = _unknown(whole, obj, "")
    return [path for path in found if kind in SPECS or path.startswith("metadata.")]


def _unknown(expected: Schema, value: Any, path: str) -> list[str]:
    found: list[str] = []
    if isinstance(expected, dict) and isinstance(value, dict):
        for name, inner in value.items():
            at = f"{path}.{name}" if path else name
            found += _unknown(expected[name], inner, at) if name in expected else [at]
    elif isinstance(expected, list) and isinstance(value, list):
        for index, item in enumerate(value):
            found += _unknown(expected[0], item, f"{path}[{index}]")
    return found


def pruned(kind: Kind, obj: dict[str, Any]) -> dict[str, Any]:
    """Without the fields that the kind does not have, and without those that are null."""
    whole = schema(kind)
    if whole is None:
        return {**obj, "metadata": _prune(METADATA, obj.get("metadata", {}))}
    result: dict[str, Any] = _prune(whole, obj)
    return result


def _prune(expected: Schema, value: Any) -> Any:
    if isinstance(expected, dict) and isinstance(value, dict):
        fields = {name: inner for name, inner in value.items() if name in expected and inner is not None}
        return {name: _prune(expected[name], inner) for name, inner in fields.items()}
    if isinstance(expected, list) and isinstance(value, list):
        return [_prune(expected[0], item) for item in value]
    return value


def wrong_types(kind: Kind, obj: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(path, type found, type expected) of values of another type than the field's; null passes everywhere."""
    return list(_wrong(schema(kind) or {"metadata": METADATA}, obj, ""))


def _wrong(expected: Schema, value: Any, path: str) -> Iterator[tuple[str, str, str]]:
    if value is None or expected == "any":
        return
    found = _GO_NAMES.get(type(value), "value")
    if isinstance(expected, dict):
        if not isinstance(value, dict):
            yield path, found, "object"
            return
        for name, inner in value.items():
            if name in expected:
                yield from _wrong(expected[name], inner, f"{path}.{name}" if path else name)
    elif isinstance(expected, list):
        if not isinstance(value, list):
            yield path, found, "array"
            return
        for index, item in enumerate(value):
            if item is None:
                yield f"{path}[{index}]", "null", "object" if isinstance(expected[0], dict) else str(expected[0])
            yield from _wrong(expected[0], item, f"{path}[{index}]")
    elif not isinstance(value, _TYPES[expected]) or (isinstance(value, bool) and expected != "boolean"):
        yield path, found, "object" if expected in ("map", "quantities") else expected
    elif isinstance(value, dict):
        allowed: tuple[type, ...] = (str,) if expected == "map" else (str, int, float)
        for name, inner in value.items():
            if inner is not None and (not isinstance(inner, allowed) or isinstance(inner, bool)):
                yield f"{path}.{name}", _GO_NAMES.get(type(inner), "value"), "string"
