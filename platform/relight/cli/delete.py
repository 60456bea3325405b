"""``relight delete``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from relight.base.errors import BadInput, Conflict, NotFound, RelightError
from relight.cli import exits
from relight.cli.kube import Connection, connect
from relight.cli.manifests import Kustomize, read
from relight.cli.target import Context, Kubeconfig, Namespace

if TYPE_CHECKING:
    from relight.cluster.documents import Document


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
    kustomize: Kustomize = None,
    ignore_not_found: Annotated[bool, typer.Option("--ignore-not-found", help="Absent is fine.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also what relight did not make.")] = False,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> int:
    """Delete objects, by kind and name or as manifests list them.

    What belongs to an object goes with it: a Service's revisions, a function's
    triggers. What relight did not make stays, unless --force is given.

    \b
    relight delete ksvc hello
    relight delete -k manifests/overlays/cpu
    """
    if bool(filename or kustomize) == bool(kind):
        raise BadInput("expected KIND NAME…, -f PATH or -k DIR")
    if kind and not names:
        raise BadInput(f"expected the names of what to delete: relight delete {kind} NAME…")

    with connect(kubeconfig, context, namespace) as link:
        failed: list[RelightError] = []
        found = _named(link, kind, names or []) if kind else _listed(read(filename, kustomize, None), link.namespace)
        for one in found:
            try:
                if not force:
                    _check_ours(link, one)
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


def _check_ours(link: Connection, one: _Object) -> None:
    """Conflict: relight has not made this object."""
    from relight.cluster.ownership import is_ours, managers

    value = link.kube.get(one.api_version, one.kind, one.name, one.namespace)
    if not is_ours(value):
        by = ", ".join(managers(value)) or "somebody else"
        raise Conflict(f"{one.shown} was not made by relight but by {by}: it stays (--force deletes it all the same)")


def _listed(documents: list[Document], namespace: str) -> list[_Object]:
    """What manifests hold, in the reverse of the order in which it is applied."""
    from relight.cluster.documents import ordered

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
