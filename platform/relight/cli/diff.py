"""``relight diff``."""

from __future__ import annotations

from relight.cli import exits
from relight.cli.kube import connect
from relight.cli.manifests import Filename, Image, Kustomize, read
from relight.cli.target import Context, Kubeconfig, Namespace


def command(
    filename: Filename = None,
    kustomize: Kustomize = None,
    image: Image = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> int:
    """Show what apply would change, as the cluster itself says it.

    Exits with 0 where nothing would change, and with 1 where something would.

    \b
    relight diff -k manifests/overlays/prod
    """
    from relight.cluster.diff import differences

    documents = read(filename, kustomize, image)
    found = False
    with connect(kubeconfig, context, namespace) as link:
        for _, text in differences(link.kube, documents, link.namespace):
            found = True
            print(text, end="", flush=True)
    return exits.FAILED if found else exits.OK
