"""``relight delete``."""

from __future__ import annotations

import sys
from typing import Annotated, NamedTuple

import typer

from relight.base.errors import BadInput, NotFound, RelightError
from relight.cli import exits
from relight.cli.kube import Connection, connect
from relight.cli.target import Context, Kubeconfig, Namespace


class _Object(NamedTuple):
    api_version: str
    kind: str
    name: str
    namespace: str | None
    shown: str


def command(
    kind: Annotated[str | None, typer.Argument(help="Such as ksvc, trigger, broker.", show_default=False)] = None,
    names: Annotated[list[str] | None, typer.Argument(help="The objects.", show_default=False)] = None,
    filename: Annotated[
        list[str] | None,
        typer.Option(
            "-f", "--filename", metavar="PATH", help="What these manifests hold; - is stdin.", show_default=False
        ),
    ] = None,
    ignore_not_found: Annotated[bool, typer.Option("--ignore-not-found", help="Absent is fine.")] = False,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> int:
    """Delete objects, by kind and name or as manifests list them.

    What belongs to an object goes with it: a Service's revisions, a function's
    triggers.

    \b
    relight delete ksvc hello
    relight delete -f manifests/
    """
    if bool(filename) == bool(kind):
        raise BadInput("expected KIND NAME… or -f PATH")
    if kind and not names:
        raise BadInput(f"expected the names of what to delete: relight delete {kind} NAME…")

    with connect(kubeconfig, context, namespace) as link:
        failed: list[RelightError] = []
        found = _named(link, kind, names or []) if kind else _listed(filename or [], link.namespace)
        for one in found:
            try:
                link.kube.delete(one.api_version, one.kind, one.name, one.namespace)
                print(f"{one.shown} deleted", flush=True)
            except RelightError as error:
                if not (ignore_not_found and isinstance(error, NotFound)):
                    failed.append(error)
    for failure in failed:
        print(f"error: {failure.message}", file=sys.stderr)
    return exits.exit_code(failed[0]) if failed else exits.OK


def _named(link: Connection, kind: str, names: list[str]) -> list[_Object]:
    resource = link.kube.resource(kind)
    where = link.namespace if resource.namespaced else None
    return [_Object(resource.api_version, resource.kind, name, where, f"{resource}/{name}") for name in names]


def _listed(paths: list[str], namespace: str) -> list[_Object]:
    """What manifests hold, in the reverse of the order in which it is applied."""
    from relight.cluster.documents import ordered, read_documents

    documents = read_documents(paths, sys.stdin.read() if "-" in paths else None)
    return [
        _Object(
            document.value["apiVersion"],
            document.value["kind"],
            document.value["metadata"]["name"],
            document.value["metadata"].get("namespace") or namespace,
            document.name,
        )
        for document in reversed(ordered(documents))
    ]
