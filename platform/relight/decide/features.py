"""Which of Knative Serving's feature flags a pod needs: ConfigMap ``config-features`` in ``knative-serving``.

A field that is behind a flag is refused by Knative's webhook until the flag is ``enabled``. Fields and flags are those
of Knative 1.20; each default is the shipped one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

FIELDS = {
    "affinity": "kubernetes.podspec-affinity",
    "dnsConfig": "kubernetes.podspec-dnsconfig",
    "dnsPolicy": "kubernetes.podspec-dnspolicy",
    "hostAliases": "kubernetes.podspec-hostaliases",
    "hostIPC": "kubernetes.podspec-hostipc",
    "hostNetwork": "kubernetes.podspec-hostnetwork",
    "hostPID": "kubernetes.podspec-hostpid",
    "initContainers": "kubernetes.podspec-init-containers",
    "nodeSelector": "kubernetes.podspec-nodeselector",
    "priorityClassName": "kubernetes.podspec-priorityclassname",
    "runtimeClassName": "kubernetes.podspec-runtimeclassname",
    "schedulerName": "kubernetes.podspec-schedulername",
    "securityContext": "kubernetes.podspec-securitycontext",
    "shareProcessNamespace": "kubernetes.podspec-shareprocessnamespace",
    "tolerations": "kubernetes.podspec-tolerations",
    "topologySpreadConstraints": "kubernetes.podspec-topologyspreadconstraints",
}
"""Field of the pod's spec → flag; all are disabled as shipped."""

VOLUMES = {
    "emptyDir": ("kubernetes.podspec-volumes-emptydir", "enabled"),
    "hostPath": ("kubernetes.podspec-volumes-hostpath", "disabled"),
    "persistentVolumeClaim": ("kubernetes.podspec-persistent-volume-claim", "disabled"),
    "csi": ("kubernetes.podspec-volumes-csi", "disabled"),
    "image": ("kubernetes.podspec-volumes-image", "disabled"),
}
"""Source of a volume → flag and its value as shipped."""

CLAIM_WRITE = "kubernetes.podspec-persistent-volume-write"


def needed(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(flag, field that needs it) of a revision's spec, only flags that are disabled as shipped."""
    for field, flag in FIELDS.items():
        if spec.get(field):
            yield flag, field
    for at, volume in enumerate(spec.get("volumes") or ()):
        for source, (flag, shipped) in VOLUMES.items():
            if source in volume and shipped == "disabled":
                yield flag, f"volumes[{at}].{source}"
        claim = volume.get("persistentVolumeClaim")
        if claim is not None and not claim.get("readOnly"):
            yield CLAIM_WRITE, f"volumes[{at}].persistentVolumeClaim"
