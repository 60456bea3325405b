"""What applying would change: the API's own answer to a dry run, beside what it has."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from relight.base.errors import NotFound, RelightError
from relight.cluster.apply import wanted_of
from relight.cluster.documents import Document, ordered

if TYPE_CHECKING:
    from relight.net.kube import Kube

_SERVERS = ("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "selfLink")


@dataclass(frozen=True)
class Difference:
    """What applying one document would change, as a unified diff; or why it would be refused."""

    document: Document
    text: str = ""
    error: RelightError | None = None


def differences(kube: Kube, documents: Sequence[Document], namespace: str) -> Iterator[Difference]:
    """Each document that would be created, changed or refused; the server's defaults are no difference."""
    for document in ordered(documents):
        try:
            text = _difference(kube, document, namespace)
        except RelightError as error:
            yield Difference(document, error=error)
            continue
        if text:
            yield Difference(document, text)


def _difference(kube: Kube, document: Document, namespace: str) -> str:
    wanted = wanted_of(document.value, namespace, kube.namespace)
    meta = wanted["metadata"]
    try:
        before = kube.get(wanted["apiVersion"], wanted["kind"], meta["name"], meta.get("namespace") or namespace)
    except NotFound:
        before = None
    return unified(document.name, before, kube.apply(wanted, dry_run=True))


def unified(name: str, before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> str:
    """Two states of an object as a unified diff of their YAML, without what the server keeps for itself."""
    lines = [_lines(before), _lines(after)]
    return "".join(difflib.unified_diff(lines[0], lines[1], f"live/{name}", f"wanted/{name}"))


def _lines(value: Mapping[str, Any] | None) -> list[str]:
    if value is None:
        return []
    kept = {key: part for key, part in value.items() if key != "status"}
    kept["metadata"] = {key: part for key, part in value["metadata"].items() if key not in _SERVERS}
    return yaml.safe_dump(kept, sort_keys=True, allow_unicode=True).splitlines(keepends=True)
