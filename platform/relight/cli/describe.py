"""``relight describe``."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from relight.cli.kube import Connection, connect
from relight.cli.output import AnyFormat, print_table, print_value
from relight.cli.tables import tree
from relight.cli.target import Context, Kubeconfig, Namespace

_NOISE = ("managedFields", "selfLink")
_COLD_START = "relight.dev/cold-start"
_SERVING = "serving.knative.dev/"


def command(
    kind: Annotated[str, typer.Argument(help="Such as ksvc, revision, trigger, broker, pod.")],
    name: Annotated[str, typer.Argument(help="The object.")],
    output: Annotated[AnyFormat, typer.Option("-o", "--output", help="How to print.")] = "table",
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Show one object with its conditions and events, and of functions the cold starts by phase."""

    with connect(kubeconfig, context, namespace) as link:
        resource = link.kube.resource(kind)
        value = link.kube.get(
            resource.api_version, resource.kind, name, link.namespace if resource.namespaced else None
        )
        uid = value["metadata"].get("uid")
        events = link.kube.list("v1", "Event", link.namespace)["items"]
        revisions = _revisions(link, resource.kind, name) if resource.api_version.startswith(_SERVING) else set()

    def belongs(event: dict[str, Any]) -> bool:
        involved = event.get("involvedObject", {}).get("uid")
        return involved == uid or (involved in revisions and event.get("reason") == "ColdStart")

    events = [event for event in events if belongs(event)]
    if output == "table":
        print_description(value, events)
    else:
        print_value({"object": value, "events": events}, output)


def _revisions(link: Connection, kind: str, name: str) -> set[str]:
    """Uids of what a function's Service or Configuration made: their cold starts are its own."""
    if kind not in ("Service", "Configuration"):
        return set()
    label = f"serving.knative.dev/{kind.lower()}"
    found = link.kube.list(f"{_SERVING}v1", "Revision", link.namespace)["items"]
    return {one["metadata"]["uid"] for one in found if (one["metadata"].get("labels") or {}).get(label) == name}


def print_description(value: dict[str, Any], events: list[dict[str, Any]]) -> None:
    """An object as text: metadata, spec, conditions as a table, the rest of status, events."""
    meta = {key: part for key, part in value["metadata"].items() if key not in _NOISE}
    status = dict(value.get("status") or {})
    conditions = status.pop("conditions", None) or []
    for line in tree({"kind": value["kind"], "apiVersion": value["apiVersion"], "metadata": meta}):
        print(line)
    for line in tree(
        {key: part for key, part in value.items() if key in ("spec", "data", "type")} | {"status": status}
    ):
        print(line)
    if conditions:
        print("\nconditions:")
        print_table(
            ("type", "status", "reason", "message"),
            [[one.get(key, "") for key in ("type", "status", "reason", "message")] for one in conditions],
        )
    cold_starts = [one for one in events if one.get("reason") == "ColdStart"]
    if cold_starts:
        _print_cold_starts(cold_starts)
    events = [one for one in events if one not in cold_starts]
    if events:
        print("\nevents:")
        print_table(
            ("type", "reason", "count", "message"),
            [[one.get(key, "") for key in ("type", "reason", "count", "message")] for one in events],
        )


def _print_cold_starts(events: list[dict[str, Any]]) -> None:
    """Cold starts of a revision by phase, the newest last; milliseconds."""
    print("\ncold starts (ms):")
    rows, phases = [], list[str]()
    for event in sorted(events, key=lambda one: one.get("lastTimestamp") or ""):
        try:
            cold = json.loads((event["metadata"].get("annotations") or {})[_COLD_START])
        except (KeyError, ValueError):
            continue
        phases = phases or list(cold["phases"])
        rows.append([event.get("lastTimestamp", ""), cold["total"], *(cold["phases"].get(name, 0) for name in phases)])
    print_table(
        ("at", "total", *phases),
        [[at, *(f"{seconds * 1000:.0f}" for seconds in numbers)] for at, *numbers in rows],
    )
