"""Whether the images that functions run are ones that a cluster can have, and what it said of those it tried.

The registry itself is not asked from here: who may pull is decided on the nodes. ``inside`` pulls there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from relight.cluster.documents import Document
from relight.cluster.reasons import why_waiting
from relight.cluster.verdicts import Check, images

if TYPE_CHECKING:
    from relight.cluster.client import Client

SERVING = "serving.knative.dev/v1"
REVISION_LABEL = "serving.knative.dev/revision"
CANNOT_PULL = "the image cannot be pulled"
PULLING = "push it where the nodes reach it; a private registry needs a Secret in the ServiceAccount's imagePullSecrets"
_EXAMPLES = ("registry.example.com", "REGISTRY")
"""Hosts that stand in the manifests for one's own registry."""


def check_images(kube: Client, documents: Sequence[Document], namespace: str) -> Iterator[Check]:
    """The names in the documents, then what became of images that were tried in the namespace."""
    if not kube.takes_folders():
        for image, who in sorted(images(documents).items()):
            fault = _fault(image)
            if fault is not None:
                mend = "name it when applying: --image relight=REGISTRY/relight@sha256:DIGEST"
                yield Check("registry", "failed", f"{', '.join(sorted(set(who)))}: {image} {fault}", mend)
            else:
                yield Check("registry", "ok", f"{image}: its name is one of a registry; --inside pulls it")
    yield from _tried(kube, namespace, "" if kube.takes_folders() else PULLING)


def _fault(image: str) -> str | None:
    """What is wrong with the name of an image; None: nothing that can be seen."""
    host, slash, _ = image.partition("/")
    if not slash or ("." not in host and ":" not in host and host not in ("localhost", *_EXAMPLES)):
        # Kubernetes would look for it at Docker Hub, where strangers publish.
        return "names no registry"
    return "is the example's: it names no registry of yours" if host in _EXAMPLES else None


def _tried(kube: Client, namespace: str, mend: str) -> Iterator[Check]:
    """What the newest revisions say of their images, and their pods; older ones have been mended since."""
    newest = {
        (service.get("status") or {}).get("latestCreatedRevisionName")
        for service in kube.list(SERVING, "Service", namespace)["items"]
    }
    for revision in kube.list(SERVING, "Revision", namespace)["items"]:
        name = revision["metadata"]["name"]
        conditions = {one.get("type"): one for one in (revision.get("status") or {}).get("conditions") or ()}
        healthy = conditions.get("ContainerHealthy") or {}
        if name in newest and (healthy.get("status"), healthy.get("reason")) == ("False", "ContainerMissing"):
            yield Check("registry", "failed", f"revision {name}: {healthy.get('message')}", mend)
    waiting: dict[str, str] = {}
    for pod in kube.list("v1", "Pod", namespace, labels=REVISION_LABEL)["items"]:
        reason = why_waiting([pod]) or ""
        if reason.startswith(CANNOT_PULL):
            waiting[str(pod["metadata"]["labels"][REVISION_LABEL])] = reason
    for name, reason in sorted(waiting.items()):
        yield Check("registry", "failed", f"revision {name}: {reason}", mend)
