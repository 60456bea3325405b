"""Which resource a URL's path names."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from relight.local.kube.kinds import NAMESPACE, Kind, by_plural


@dataclass(frozen=True)
class Target:
    """A kind, and as much of namespace, name and subresource as the path has."""

    kind: Kind
    namespace: str | None = None
    name: str | None = None
    subresource: str | None = None


def parse(raw_path: str) -> Target | None:
    """From an encoded path such as ``/apis/serving.knative.dev/v1/namespaces/default/services/hello/status``.

    None for what is no resource of ours.
    """
    parts = [unquote(part) for part in raw_path.strip("/").split("/")]
    if any(not part or "/" in part for part in parts):
        return None
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    if not group and rest[0] == "namespaces" and (len(rest) < 3 or rest[2] in ("status", "finalize")):
        return _target(NAMESPACE, None, rest[1:]) if version == "v1" else None
    if rest[0] == "namespaces":
        if len(rest) < 3:
            return None
        kind = by_plural(group, version, rest[2])
        return _target(kind, rest[1], rest[3:]) if kind and kind.namespaced else None
    kind = by_plural(group, version, rest[0])
    if kind is None or (kind.namespaced and len(rest) > 1):
        return None
    return _target(kind, None, rest[1:])


def _target(kind: Kind, namespace: str | None, rest: list[str]) -> Target | None:
    if len(rest) > 2:
        return None
    name, subresource = (*rest, None, None)[:2]
    return Target(kind, namespace, name, subresource)
