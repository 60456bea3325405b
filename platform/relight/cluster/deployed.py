"""What relight has deployed in a namespace, as documents: the functions' Services and the ConfigMaps they read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from relight.base.errors import NotFound
from relight.cluster.documents import Document
from relight.cluster.ownership import is_ours
from relight.cluster.verdicts import revision_spec

if TYPE_CHECKING:
    from relight.net.kube import Kube

SERVING = "serving.knative.dev/v1"


def deployed(kube: Kube, namespace: str) -> list[Document]:
    """Services that relight applied, and the ConfigMaps that their environment comes from."""
    services = [one for one in kube.list(SERVING, "Service", namespace)["items"] if is_ours(one)]
    # Items of a list do not say what they are.
    documents = [Document(kube.server, {"apiVersion": SERVING, "kind": "Service", **one}) for one in services]
    for name in sorted({name for one in documents for name in _config_maps(one.value)}):
        try:
            documents.append(Document(kube.server, kube.get("v1", "ConfigMap", name, namespace)))
        except NotFound:
            continue  # optional, or the pods say that it lacks
    return documents


def _config_maps(service: Mapping[str, Any]) -> Iterator[str]:
    for container in revision_spec(service).get("containers") or ():
        for source in container.get("envFrom") or ():
            name = (source.get("configMapRef") or {}).get("name")
            if name:
                yield str(name)
