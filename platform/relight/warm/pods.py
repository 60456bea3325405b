"""Where the replicas of a cluster answer: the addresses of its pods."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from relight.net.kube import Kube
from relight.warm.sources import Revision

_REVISION = "serving.knative.dev/revision"
_PORT = 8080
"""Knative's default for containers that name none."""


def replicas(kube: Kube) -> Callable[[], Mapping[str, Revision]]:
    """What lists the base URLs of all replicas, the queue-proxy passed by: who asks there is not counted as a call."""

    def listed() -> Mapping[str, Revision]:
        found: dict[str, Revision] = {}
        for pod in kube.list("v1", "Pod", everywhere=True, labels=_REVISION)["items"]:
            address = (pod.get("status") or {}).get("podIP")
            if not address or pod["metadata"].get("deletionTimestamp"):
                continue
            ports = [
                port["containerPort"]
                for container in pod["spec"].get("containers") or ()
                if container["name"] != "queue-proxy"
                for port in container.get("ports") or ()
            ]
            host = f"[{address}]" if ":" in address else address
            revision = (pod["metadata"]["namespace"], pod["metadata"]["labels"][_REVISION])
            found[f"http://{host}:{ports[0] if ports else _PORT}"] = revision
        return found

    return listed
