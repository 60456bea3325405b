"""Whether a cluster's nodes offer the GPUs that functions ask for: device plugin, MIG layout, products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from relight.cluster.documents import Document
from relight.cluster.verdicts import Check, revision_spec
from relight.decide import gpus

if TYPE_CHECKING:
    from relight.cluster.client import Client

_PRESENT = ("nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present")
"""Labels of a node with an NVIDIA card: from GPU feature discovery, and from node feature discovery alone."""
_MIG_STATE = "nvidia.com/mig.config.state"
"""Label in which NVIDIA's MIG manager says how far it is with a node's layout."""
_PLUGIN = "install NVIDIA's device plugin (or GPU operator) on the GPU nodes"


def check_gpus(kube: Client, documents: Sequence[Document]) -> Iterator[Check]:
    """The nodes by themselves, then what the documents ask for."""
    nodes = kube.list("v1", "Node")["items"]
    yield from _nodes(nodes)
    asked: dict[str, list[str]] = {}
    for document in documents:
        found = gpus.wanted(revision_spec(document.value))
        if found is not None:
            asked.setdefault(found[0], []).append(str(document.value["metadata"]["name"]))
    offered = sorted({name for node in nodes for name in _offers(node)})
    for resource, names in sorted(asked.items()):
        yield _resource(resource, ", ".join(names), nodes, offered)
    if not asked:
        yield Check(
            "gpu", "ok", f"offered: {', '.join(offered)}" if offered else "no node offers one, none is asked for"
        )


def _nodes(nodes: Sequence[Mapping[str, Any]]) -> Iterator[Check]:
    for node in nodes:
        meta = node["metadata"]
        labels: Mapping[str, str] = meta.get("labels") or {}
        if any(labels.get(label) == "true" for label in _PRESENT) and not _offers(node):
            yield Check("gpu", "failed", f"node {meta['name']} has a GPU and offers none to pods", _PLUGIN)
        state = labels.get(_MIG_STATE, "success")
        if state != "success":
            wanted = labels.get("nvidia.com/mig.config", "unknown")
            mend = f"kubectl logs -n gpu-operator -l app=nvidia-mig-manager --tail 50 says why, for node {meta['name']}"
            finding = f"node {meta['name']}: its MIG layout {wanted} is {state}"
            yield Check("gpu", "failed" if state == "failed" else "warning", finding, mend)


def _resource(resource: str, who: str, nodes: Sequence[Mapping[str, Any]], offered: Sequence[str]) -> Check:
    there = gpus.gpus(nodes, resource)
    if there:
        return Check("gpu", "ok", f"{resource}: {', '.join(f'{gpu.product} on {gpu.node}' for gpu in there)}")
    if offered:
        return Check(
            "gpu",
            "failed",
            f"{who}: {resource} is asked for, and the nodes offer {', '.join(offered)}",
            "ask for one of these in relight.yaml, or change the nodes' MIG layout (label nvidia.com/mig.config)",
        )
    return Check(
        "gpu",
        "warning",
        f"{who}: {resource} is asked for, and no node offers a GPU now",
        f"{_PLUGIN}, unless they are made when they are asked for",
    )


def _offers(node: Mapping[str, Any]) -> list[str]:
    """The kinds of GPU that pods can have of a node."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return [name for name in allocatable if "/" in name and gpus.gpus([node], name) and gpus.wanted(_asking(name))]


def _asking(resource: str) -> Mapping[str, Any]:
    return {"containers": [{"resources": {"limits": {resource: 1}}}]}
