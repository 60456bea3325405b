"""``relight diff``."""

from __future__ import annotations

from relight.cli import exits
from relight.cli.kube import connect
from relight.cli.manifests import Filename, Image, Kustomize, explain, read
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
    A document that would be refused is named, and gives another exit code.

    \b
    relight diff -k manifests/overlays/prod
    """
    from relight.cluster.diff import differences

    documents = read(filename, kustomize, image)
    code = exits.OK
    with connect(kubeconfig, context, namespace) as link:
        for one in differences(link.kube, documents, link.namespace):
            if one.error is not None:
                explain(one.document, one.error)
                code = exits.exit_code(one.error)
            else:
                print(one.text, end="", flush=True)
                code = code or exits.FAILED
    return code
