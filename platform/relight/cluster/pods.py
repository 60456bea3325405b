"""What every pod of a function gets on a cluster, besides what its project says. Pure.

As the manifests in ``manifests/base`` have it: nothing of a pod's security level is left to the namespace, and a
function writes to its two volumes alone.
"""

from __future__ import annotations

from typing import Any

CACHE, SCRATCH = "/cache", "/tmp"
CREDENTIALS = "relight-credentials"
"""Secret of the namespace with what the model repository asks for; it may be absent."""


def speaking_http(liveness: str, readiness: str) -> dict[str, Any]:
    """How a container is probed that speaks HTTP/1.1; Knative fills in the port."""
    return {
        "livenessProbe": {"httpGet": {"path": liveness, "port": 0}},
        "readinessProbe": {"httpGet": {"path": readiness, "port": 0}},
    }


def speaking_grpc() -> dict[str, Any]:
    """How a container is probed that speaks gRPC; its one port says so."""
    return {
        "ports": [{"name": "h2c", "containerPort": 8080}],
        "livenessProbe": {"grpc": {"port": 8080, "service": "liveness"}},
        "readinessProbe": {"grpc": {"port": 8080, "service": "readiness"}},
    }


def harden(spec: dict[str, Any]) -> None:
    """Add the security context, the volumes and the credentials to a revision's spec, in place."""
    (container,) = spec["containers"]
    container["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container["envFrom"] = [
        *container.get("envFrom", ()),
        {"secretRef": {"name": CREDENTIALS, "optional": True}},
    ]
    given = {one["name"] for one in container["env"]}
    places = (("RELIGHT_CACHE", CACHE), ("HOME", SCRATCH))
    container["env"] = [
        *container["env"],
        *({"name": name, "value": path} for name, path in places if name not in given),
    ]
    mounts, volumes = container.setdefault("volumeMounts", []), spec.setdefault("volumes", [])
    for name, path in (("cache", CACHE), ("tmp", SCRATCH)):
        if not any(mount["mountPath"] == path for mount in mounts):
            mounts.append({"name": name, "mountPath": path})
            volumes.append({"name": name, "emptyDir": {}})
