"""``relight apply``."""

from __future__ import annotations

from typing import Annotated

import typer

from relight.cli import exits
from relight.cli.kube import connect
from relight.cli.manifests import Filename, Image, Kustomize, explain, read
from relight.cli.output import Format, print_json, waiting
from relight.cli.target import Context, Kubeconfig, Namespace


def command(
    filename: Filename = None,
    kustomize: Kustomize = None,
    image: Image = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until each applied Knative Service is ready.")] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="For --wait, per Service.")] = 600.0,
    output: Annotated[Format, typer.Option("-o", "--output", help="How to print.")] = "table",
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> int:
    """Apply manifests, server-side: files, folders, kustomizations.

    Each document that fails is named with its file; the others are applied.

    \b
    relight apply -k manifests/overlays/local
    relight apply -f service.yaml -f trigger.yaml
    """
    from relight.cluster.apply import Applied, apply_documents
    from relight.cluster.waiting import SERVING, wait_ready

    documents = read(filename, kustomize, image)

    def tell(applied: Applied) -> None:
        if applied.error is not None:
            explain(applied.document, applied.error)
        elif output != "json":
            print(f"{applied.document.name} {applied.verb}", flush=True)

    with connect(kubeconfig, context, namespace) as link:
        results = apply_documents(link.kube, documents, link.namespace, tell)
        if wait:
            for one in results:
                if one.value and (one.value["apiVersion"], one.value["kind"]) == (SERVING, "Service"):
                    with waiting(f"waiting for {one.value['metadata']['name']}") as progress:
                        wait_ready(link.kube, one.value, timeout, progress.show)
    if output == "json":
        print_json([one.value for one in results if one.value is not None])
    errors = [one.error for one in results if one.error is not None]
    return exits.exit_code(errors[0]) if errors else exits.OK
