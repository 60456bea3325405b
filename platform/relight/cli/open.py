"""``relight open``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from relight.cli.kube import function_url
from relight.cli.output import note
from relight.cli.target import Context, Kubeconfig, Namespace


def command(
    name: Annotated[str, typer.Argument(help="A function.")],
    path: Annotated[str, typer.Option(metavar="PATH", help="Path below the function's URL.")] = "/",
    only_print: Annotated[bool, typer.Option("--print", help="Only print the URL.")] = False,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Open a function's URL in the browser, and print it.

    Where there is no terminal, as in a script, it is only printed.
    """
    url = function_url(name, namespace, kubeconfig, context).rstrip("/") + "/" + path.lstrip("/")
    print(url)
    if only_print or not sys.stdout.isatty():
        return
    import webbrowser

    if not webbrowser.open(url):
        note("no browser was found: open the URL yourself")
