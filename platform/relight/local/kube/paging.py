"""Lists in pages: ``limit`` and ``continue``, with the API server's own kind of token.

A cluster answers all pages from one snapshot. Here a later page shows the objects of that moment, under the version of
the first page: a client that lists in pages and watches from the version it was given misses nothing, for everything
that changed meanwhile comes in the watch. A token whose version is no longer in the log of changes is refused (410), as
a cluster refuses one that is older than five minutes.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass

from relight.local.kube.cascades import Object
from relight.local.kube.failures import Failure, bad_request
from relight.local.kube.kinds import Kind

_VERSION = "meta.k8s.io/v1"


@dataclass(frozen=True)
class Position:
    """Where a page begins: after the object of this namespace and name, in a list of this version."""

    version: int
    namespace: str
    name: str


@dataclass(frozen=True)
class Page:
    """Objects of one answer. ``following`` is empty and ``remaining`` None on the last page."""

    objects: list[Object]
    version: int
    following: str = ""
    remaining: int | None = None


def position(token: str, oldest: int, newest: int) -> Position | None:
    """What a ``continue`` means; None for none. ``oldest`` and ``newest``: versions that can be continued from."""
    if not token:
        return None
    try:
        said = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        found, (namespace, _, name) = int(said["rv"]), said["start"].rstrip("\0").rpartition("/")
        if said["v"] != _VERSION or not name:
            raise ValueError(said["v"])
    except (binascii.Error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise bad_request(f"continue key is not valid: {error}") from None
    if not oldest <= found <= newest:
        raise Failure(
            410,
            "The provided continue parameter is too old to display a consistent list result. You can start a new list "
            "without the continue parameter.",
            reason="Expired",
        )
    return Position(found, namespace, name)


def page(kind: Kind, objects: list[Object], version: int, limit: int | None, start: Position | None) -> Page:
    """The page of a sorted list that begins after ``start``; ``limit`` None or 0: all the rest."""
    if start is not None:
        version = start.version
        after = (start.namespace, start.name)
        objects = [obj for obj in objects if _key(kind, obj) > after]
    if not limit or len(objects) <= limit:
        return Page(objects, version)
    shown = objects[:limit]
    namespace, name = _key(kind, shown[-1])
    said = {"v": _VERSION, "rv": version, "start": f"{namespace}/{name}\0" if namespace else f"{name}\0"}
    token = base64.urlsafe_b64encode(json.dumps(said, separators=(",", ":")).encode()).decode().rstrip("=")
    return Page(shown, version, token, len(objects) - limit)


def _key(kind: Kind, obj: Object) -> tuple[str, str]:
    metadata = obj["metadata"]
    return (metadata["namespace"] if kind.namespaced else "", metadata["name"])
