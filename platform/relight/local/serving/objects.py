"""The objects that serving makes from others, as Knative's reconcilers name and label them.

Service -> Configuration and Route; Configuration -> a Revision per generation; Revision -> PodAutoscaler, and a Pod for
each replica.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from relight.local.kube import kinds

Object = dict[str, Any]

SERVICE = "serving.knative.dev/service"
SERVICE_UID = "serving.knative.dev/serviceUID"
CONFIGURATION = "serving.knative.dev/configuration"
CONFIGURATION_UID = "serving.knative.dev/configurationUID"
GENERATION = "serving.knative.dev/configurationGeneration"
REVISION = "serving.knative.dev/revision"
REVISION_UID = "serving.knative.dev/revisionUID"
ROUTING_STATE = "serving.knative.dev/routingState"
ROUTING_STATE_MODIFIED = "serving.knative.dev/routingStateModified"
ROUTES = "serving.knative.dev/routes"
"""Annotation of Configurations and Revisions: names of the routes that lead to them, comma separated."""
ROLLOUT_DURATION = "serving.knative.dev/rollout-duration"
NO_GC = "serving.knative.dev/no-gc"
AUTOSCALING = "autoscaling.knative.dev/"
DRAIN = "relight.dev/drain"
"""Finalizer of a Pod: its process has not ended yet."""
LIMITS = "relight.dev/limits"
"""Annotation of a Pod: how its memory and CPU limits are kept (``cgroup v2``, ``cgroup v1``, ``rlimit``)."""
DEVICES = "relight.dev/devices"
"""Annotation of a Pod: the GPUs that are its own."""
_CREATOR = "serving.knative.dev/creator"
_PASSED_ON = (_CREATOR, "serving.knative.dev/lastModifier", ROLLOUT_DURATION)


def rfc3339() -> str:
    """Now, as Kubernetes writes it in a status."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def owner(obj: Mapping[str, Any]) -> list[Object]:
    """The ownerReferences of something that ``obj`` controls."""
    return [
        {
            "apiVersion": obj["apiVersion"],
            "blockOwnerDeletion": True,
            "controller": True,
            "kind": obj["kind"],
            "name": obj["metadata"]["name"],
            "uid": obj["metadata"]["uid"],
        }
    ]


def annotations_of(obj: Mapping[str, Any]) -> dict[str, str]:
    return dict(obj["metadata"].get("annotations") or {})


def labels_of(obj: Mapping[str, Any]) -> dict[str, str]:
    return dict(obj["metadata"].get("labels") or {})


def _passed_on(obj: Mapping[str, Any]) -> dict[str, str]:
    return {name: value for name, value in annotations_of(obj).items() if name in _PASSED_ON}


def _creator(obj: Mapping[str, Any]) -> dict[str, str]:
    return {name: value for name, value in annotations_of(obj).items() if name == _CREATOR}


def configuration_for(service: Mapping[str, Any]) -> Object:
    meta = service["metadata"]
    return {
        "apiVersion": kinds.CONFIGURATION.api_version,
        "kind": kinds.CONFIGURATION.kind,
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            "annotations": _passed_on(service),
            "labels": {SERVICE: meta["name"], SERVICE_UID: meta["uid"]},
            "ownerReferences": owner(service),
        },
        "spec": {"template": service["spec"]["template"]},
    }


def route_for(service: Mapping[str, Any]) -> Object:
    meta = service["metadata"]
    traffic = []
    for target in service["spec"].get("traffic") or [{"latestRevision": True, "percent": 100}]:
        line = dict(target)
        if not line.get("revisionName"):
            line |= {"configurationName": meta["name"], "latestRevision": True}
        traffic.append(line)
    return {
        "apiVersion": kinds.ROUTE.api_version,
        "kind": kinds.ROUTE.kind,
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            "annotations": _passed_on(service),
            "labels": {SERVICE: meta["name"]},
            "ownerReferences": owner(service),
        },
        "spec": {"traffic": traffic},
    }


def revision_name(configuration: Mapping[str, Any]) -> str:
    """The template's own name where it has one, else ``<configuration>-<generation>`` with five digits."""
    meta = configuration["metadata"]
    own = (configuration["spec"]["template"].get("metadata") or {}).get("name")
    return own or f"{meta['name']}-{meta['generation']:05d}"


def revision_for(configuration: Mapping[str, Any]) -> Object:
    meta = configuration["metadata"]
    template = configuration["spec"]["template"]
    given = template.get("metadata") or {}
    labels = {
        **(given.get("labels") or {}),
        CONFIGURATION: meta["name"],
        CONFIGURATION_UID: meta["uid"],
        GENERATION: str(meta["generation"]),
        ROUTING_STATE: "pending",
    }
    for name in (SERVICE, SERVICE_UID):
        if name in labels_of(configuration):
            labels[name] = labels_of(configuration)[name]
    return {
        "apiVersion": kinds.REVISION.api_version,
        "kind": kinds.REVISION.kind,
        "metadata": {
            "name": revision_name(configuration),
            "namespace": meta["namespace"],
            "annotations": {**(given.get("annotations") or {}), **_creator(configuration)},
            "labels": labels,
            "ownerReferences": owner(configuration),
        },
        "spec": template["spec"],
    }


def pod_autoscaler_for(revision: Mapping[str, Any], reachable: bool) -> Object:
    """Its ``autoscaling.knative.dev/*`` annotations are the Revision's, deletions included: they may change."""
    meta = revision["metadata"]
    annotations = {name: value for name, value in annotations_of(revision).items() if name.startswith(AUTOSCALING)}
    annotations.setdefault(AUTOSCALING + "class", "kpa.autoscaling.knative.dev")
    annotations.setdefault(AUTOSCALING + "metric", "concurrency")
    annotations |= _creator(revision)
    concurrency = revision["spec"].get("containerConcurrency", 0)
    return {
        "apiVersion": kinds.POD_AUTOSCALER.api_version,
        "kind": kinds.POD_AUTOSCALER.kind,
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            "annotations": annotations,
            "labels": _replica_labels(revision),
            "ownerReferences": owner(revision),
        },
        "spec": {
            **({"containerConcurrency": concurrency} if concurrency else {}),
            "protocolType": "h2c" if speaks_h2c(revision) else "http1",
            "reachability": "Reachable" if reachable else "Unreachable",
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": f"{meta['name']}-deployment"},
        },
    }


def speaks_h2c(revision: Mapping[str, Any]) -> bool:
    """Whether its port is named ``h2c``, Knative's word for HTTP/2 with prior knowledge."""
    containers = revision["spec"]["containers"]
    return any(port.get("name") == "h2c" for container in containers for port in container.get("ports") or ())


def _replica_labels(revision: Mapping[str, Any]) -> dict[str, str]:
    meta = revision["metadata"]
    labels = {name: value for name, value in labels_of(revision).items() if name != ROUTING_STATE}
    return labels | {"app": meta["name"], REVISION: meta["name"], REVISION_UID: meta["uid"]}


def pod_for(revision: Mapping[str, Any], name: str, port: int) -> Object:
    """A replica as a Pod: a process of this machine, shown where users look for it."""
    container = revision["spec"]["containers"][0]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": revision["metadata"]["namespace"],
            "labels": _replica_labels(revision),
            "ownerReferences": owner(revision),
            "finalizers": [DRAIN],
        },
        "spec": {
            "containers": [
                {
                    "name": container.get("name") or "user-container",
                    "image": container.get("image", ""),
                    "resources": container.get("resources") or {},
                    "ports": [{"containerPort": port, "name": "user-port", "protocol": "TCP"}],
                }
            ],
            "nodeName": "local",
            "restartPolicy": "Always",
        },
    }


def pod_status(container: str, started: str, *, ready: bool) -> Object:
    """A Pod's status. Its process runs as long as there is a Pod; until it is ready it loads."""
    flag = "True" if ready else "False"
    return {
        "phase": "Running",
        "podIP": "127.0.0.1",
        "hostIP": "127.0.0.1",
        "startTime": started,
        "conditions": [
            {"type": "ContainersReady", "status": flag, "lastTransitionTime": started},
            {"type": "Ready", "status": flag, "lastTransitionTime": started},
        ],
        "containerStatuses": [
            {
                "name": container,
                "ready": ready,
                "restartCount": 0,
                "image": "",
                "imageID": "",
                "state": {"running": {"startedAt": started}},
            }
        ],
    }
