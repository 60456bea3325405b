"""What the API serves, as clients ask for it: group by group, or all at once (aggregated discovery)."""

from __future__ import annotations

from typing import Any

from relight.local.kube.kinds import POD, Kind, groups

VERSION = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.2+relight",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}
"""The version whose answers this API follows; clients choose what they ask for by it."""

_READ = ("get", "list", "watch")
_ALL = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")


def _verbs(kind: Kind) -> list[str]:
    return list(_READ if kind.treatment == "empty" else _ALL)


def core_versions() -> dict[str, Any]:
    """``/api``"""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def group(name: str) -> dict[str, Any] | None:
    """``/apis/GROUP``; None for a group that is not served."""
    versions = groups().get(name) if name else None
    if versions is None:
        return None
    entries = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"kind": "APIGroup", "apiVersion": "v1", "name": name, "versions": entries, "preferredVersion": entries[0]}


def group_list() -> dict[str, Any]:
    """``/apis``"""
    found = [
        {key: value for key, value in (group(name) or {}).items() if key not in ("kind", "apiVersion")}
        for name in groups()
        if name
    ]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}


def resource_list(name: str, version: str) -> dict[str, Any] | None:
    """``/api/v1``, ``/apis/GROUP/VERSION``; None for what is not served."""
    found = groups().get(name, {}).get(version)
    if found is None:
        return None
    resources = []
    for kind in found:
        entry: dict[str, Any] = {
            "name": kind.plural,
            "singularName": kind.singular,
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": _verbs(kind),
        }
        if kind.short_names:
            entry["shortNames"] = list(kind.short_names)
        if kind.categories:
            entry["categories"] = list(kind.categories)
        resources.append(entry)
        for subresource, verbs in _subresources(kind):
            resources.append(
                {
                    "name": f"{kind.plural}/{subresource}",
                    "singularName": "",
                    "namespaced": kind.namespaced,
                    "kind": kind.kind,
                    "verbs": verbs,
                }
            )
    group_version = f"{name}/{version}" if name else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}


def _subresources(kind: Kind) -> list[tuple[str, list[str]]]:
    if kind.treatment == "empty":
        return []
    status = [("status", ["get", "patch", "update"])] if kind.status else []
    return [*status, ("log", ["get"])] if kind is POD else status


def aggregated(*, core: bool) -> dict[str, Any]:
    """``/api`` or ``/apis`` in the form of ``apidiscovery.k8s.io/v2``."""
    items = []
    for name, versions in groups().items():
        if bool(name) is core:
            continue
        items.append(
            {
                "metadata": {"name": name or None, "creationTimestamp": None},
                "versions": [
                    {
                        "version": version,
                        "freshness": "Current",
                        "resources": [_aggregated_resource(kind) for kind in found],
                    }
                    for version, found in versions.items()
                ],
            }
        )
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def _aggregated_resource(kind: Kind) -> dict[str, Any]:
    response = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    entry: dict[str, Any] = {
        "resource": kind.plural,
        "responseKind": response,
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": _verbs(kind),
        "subresources": [
            {"subresource": name, "responseKind": response, "verbs": verbs} for name, verbs in _subresources(kind)
        ],
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    return entry
