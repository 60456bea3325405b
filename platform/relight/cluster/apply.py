"""Applying manifests: server-side, in an order in which references exist, every failure reported with its document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from relight.base.errors import BadInput, NotFound, Problem, RelightError
from relight.cluster.documents import Document, ordered, read_documents

if TYPE_CHECKING:
    from relight.net.kube import Kube


CLUSTER_WIDE = frozenset(
    {"Namespace", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "PriorityClass", "PersistentVolume"}
)
"""Kinds of manifests that live in no namespace."""


@dataclass(frozen=True)
class Applied:
    """What became of one document: ``verb`` is created, configured or unchanged; or there is an error."""

    document: Document
    verb: str = ""
    value: Mapping[str, Any] | None = None
    error: RelightError | None = None


def apply_documents(
    kube: Kube,
    documents: Sequence[Document],
    namespace: str,
    on_applied: Callable[[Applied], None] = lambda applied: None,
) -> list[Applied]:
    """Apply each document; ``namespace`` is for those that name none. One that fails does not stop the others.

    ``on_applied`` is told of each as it is done.
    """
    results = []
    for document in ordered(documents):
        try:
            verb, value = apply_object(kube, document.value, namespace)
            applied = Applied(document, verb, value)
        except RelightError as error:
            applied = Applied(document, error=error)
        on_applied(applied)
        results.append(applied)
    return results


def apply_object(kube: Kube, value: Mapping[str, Any], namespace: str) -> tuple[str, dict[str, Any]]:
    """Apply one object: (created | configured | unchanged, the object as the API has it now)."""
    wanted = wanted_of(value, namespace, kube.namespace)
    meta = wanted["metadata"]
    try:
        before = kube.get(value["apiVersion"], value["kind"], meta["name"], meta.get("namespace") or namespace)
    except NotFound:
        before = None
    after = kube.apply(wanted)
    if before is None:
        return "created", after
    same = before["metadata"].get("resourceVersion") == after["metadata"].get("resourceVersion")
    return "unchanged" if same else "configured", after


def wanted_of(value: Mapping[str, Any], namespace: str, otherwise: str) -> dict[str, Any]:
    """The part of an object that is applied; in ``namespace`` where it names none and the client's is ``otherwise``."""
    wanted = {key: part for key, part in value.items() if key != "status"}
    meta = dict(value["metadata"])
    for key in ("resourceVersion", "uid", "creationTimestamp", "generation", "managedFields"):
        meta.pop(key, None)  # what `kubectl get -o yaml` adds is the server's to say
    wanted["metadata"] = meta
    if namespace != otherwise and value["kind"] not in CLUSTER_WIDE:
        meta.setdefault("namespace", namespace)
    return wanted


def apply_paths(
    kube: Kube,
    paths: Sequence[str | PathLike[str]],
    *,
    namespace: str,
    on_applied: Callable[[Applied], None] = lambda applied: None,
) -> list[Applied]:
    """Apply what files and folders hold. Every document is tried before the first failure is raised.

    One failure is raised as it is; of several, ``problems`` names each with its document.
    """
    results = apply_documents(kube, read_documents([fspath(path) for path in paths]), namespace, on_applied)
    failures = [(applied.document, applied.error) for applied in results if applied.error is not None]
    if len(failures) == 1:
        raise failures[0][1]
    if failures:
        raise BadInput.of(
            [Problem(f"{document.place}: {document.name}", error.message) for document, error in failures]
        )
    return results
