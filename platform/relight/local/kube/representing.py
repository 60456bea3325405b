"""How an answer is shown: whole objects, tables for ``kubectl get``, or metadata alone, as the Accept header asks."""

from __future__ import annotations

from typing import Any, Literal

from relight.local.kube import tables
from relight.local.kube.failures import Failure
from relight.local.kube.kinds import Kind

Form = Literal["object", "table", "metadata"]


def negotiate(accept: str) -> Form:
    """The first form in an Accept header that can be given. Failure 406 where none can."""
    if not accept.strip():
        return "object"
    for offer in accept.split(","):
        media_type, *rest = (part.strip() for part in offer.split(";"))
        parameters = dict(part.split("=", 1) for part in rest if "=" in part)
        if media_type not in ("application/json", "application/*", "*/*"):
            continue
        shape = parameters.get("as")
        if shape is None:
            return "object"
        if parameters.get("g") == "meta.k8s.io" and parameters.get("v") == "v1":
            if shape == "Table":
                return "table"
            if shape in ("PartialObjectMetadata", "PartialObjectMetadataList"):
                return "metadata"
    raise Failure(
        406,
        "only the following media types are accepted: application/json, "
        "application/json;as=Table;v=v1;g=meta.k8s.io, application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    )


def one(kind: Kind, obj: dict[str, Any], form: Form, *, whole: bool = False, headings: bool = True) -> dict[str, Any]:
    """One object (or a Status, which has only one form)."""
    if form == "object" or obj.get("kind") == "Status":
        return obj
    if form == "metadata":
        return tables.partial(obj)
    metadata = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
    return tables.table(kind, [obj], metadata, whole=whole, headings=headings)


def many(
    kind: Kind,
    objects: list[dict[str, Any]],
    version: int,
    form: Form,
    *,
    whole: bool = False,
    following: str = "",
    remaining: int | None = None,
) -> dict[str, Any]:
    """A list, at a version of the store; ``following`` leads to its next page, ``remaining`` says how much is left."""
    metadata: dict[str, Any] = {"resourceVersion": str(version)}
    if following:
        metadata["continue"] = following
    if remaining is not None:
        metadata["remainingItemCount"] = remaining
    if form == "table":
        return tables.table(kind, objects, metadata, whole=whole)
    if kind.custom:
        metadata = {"continue": "", **metadata}
    if form == "metadata":
        items = [tables.partial(obj) for obj in objects]
        return {
            "kind": "PartialObjectMetadataList",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": metadata,
            "items": items,
        }
    return {"apiVersion": kind.api_version, "kind": f"{kind.kind}List", "metadata": metadata, "items": objects}
