"""``relight get``."""

from __future__ import annotations

from typing import Annotated

import typer

from relight.cli.kube import Connection, connect
from relight.cli.output import note
from relight.cli.tables import Format, print_objects, print_server_table
from relight.cli.target import Context, Kubeconfig, Namespace

CATEGORIES = ("all", "knative", "serving", "eventing", "sources", "channel")
"""Names of kinds that are many kinds; discovery says which."""


def command(
    kind: Annotated[str, typer.Argument(help="Such as ksvc, revision, trigger, broker, pod; or all.")],
    name: Annotated[str | None, typer.Argument(help="One object.", show_default=False)] = None,
    output: Annotated[Format, typer.Option("-o", "--output", help="How to print.")] = "table",
    selector: Annotated[
        str | None, typer.Option("-l", "--selector", metavar="LABELS", help="Only these.", show_default=False)
    ] = None,
    all_namespaces: Annotated[bool, typer.Option("-A", "--all-namespaces", help="Of all namespaces.")] = False,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """List objects of a kind, or show one.

    \b
    relight get ksvc
    relight get revision hello-00001 -o yaml
    relight get all
    """

    with connect(kubeconfig, context, namespace) as link:
        if name is None and kind.lower() in CATEGORIES:
            _print_category(link, kind, output, selector or "", everywhere=all_namespaces)
            return
        resource = link.kube.resource(kind)
        where = None if all_namespaces or not resource.namespaced else link.namespace
        if output in ("table", "wide"):
            table = link.kube.table(resource, where, name=name, labels=selector or "")
            if table.get("rows"):
                print_server_table([table], wide=output == "wide", namespaces=all_namespaces and resource.namespaced)
            else:
                note("no resources found" + (f" in namespace {where}" if where else ""))
        elif name is not None:
            print_objects([link.kube.get(resource.api_version, resource.kind, name, where)], output, one=True)
        else:
            found = link.kube.list(
                resource.api_version, resource.kind, where, labels=selector or "", everywhere=all_namespaces
            )
            # Items of a list do not say what they are; each on its own does.
            kind_of = {"apiVersion": resource.api_version, "kind": resource.kind}
            print_objects([kind_of | item for item in found["items"]], output, one=False)


def _print_category(link: Connection, category: str, output: Format, labels: str, *, everywhere: bool) -> None:
    """Every kind of a category that has objects: tables one below the other, or all objects in one list."""
    objects: list[dict[str, object]] = []
    printed = False
    for resource in link.kube.category(category):
        where = None if everywhere or not resource.namespaced else link.namespace
        if output in ("table", "wide"):
            table = link.kube.table(resource, where, labels=labels)
            for row in table.get("rows") or ():
                row["cells"][0] = f"{resource}/{row['cells'][0]}"
            if table.get("rows"):
                if printed:
                    print()
                print_server_table([table], wide=output == "wide", namespaces=everywhere and resource.namespaced)
                printed = True
        else:
            found = link.kube.list(resource.api_version, resource.kind, where, labels=labels, everywhere=everywhere)
            kind_of = {"apiVersion": resource.api_version, "kind": resource.kind}
            objects += [kind_of | item for item in found["items"]]
    if output not in ("table", "wide"):
        print_objects(objects, output, one=False)
    elif not printed:
        note("no resources found" + ("" if everywhere else f" in namespace {link.namespace}"))
