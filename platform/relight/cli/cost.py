"""``relight cost``."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from relight.cli.kube import connect
from relight.cli.output import Format, note, print_json, print_table
from relight.cli.target import Context, Kubeconfig


def command(
    by: Annotated[str, typer.Option("--by", metavar="WHAT", help="function, or tenant (its namespace).")] = "function",
    output: Annotated[Format, typer.Option("-o", "--output", help="How to print.")] = "table",
    home: Annotated[
        str, typer.Option("--policy-namespace", metavar="NAME", help="Where the policy keeps what it has learned.")
    ] = "default",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> int:
    """Show what functions cost: busy, idle and cold seconds of their replicas,
    and what scaling to zero has saved against one replica that is always on.

    The dearest idle ones come first. It is counted since the warm policy
    watches (relight up --warm on, or dry-run).

    \b
    relight cost --by tenant
    """
    from relight.base.errors import BadInput
    from relight.warm.costs import cost_rows
    from relight.warm.settings import WarmSettings
    from relight.warm.shelf import Shelf

    if by not in ("function", "tenant"):
        raise BadInput(f"expected function or tenant, got {by!r}", param="by")
    with connect(kubeconfig, context, None) as link:
        functions, _ = Shelf(link.kube, home).load()
    rows = cost_rows(functions, WarmSettings.from_environ(os.environ), by_tenant=by == "tenant")
    if output == "json":
        print_json([row.document() for row in rows])
        return 0
    if not rows:
        note("nothing is known yet: the warm policy counts (relight up --warm on)")
    print_table(
        (by, "on", "busy s", "idle s", "cold s", "starts", "idle money", "saved"),
        [
            (
                row.name,
                row.on,
                f"{row.busy:.0f}",
                f"{row.idle:.0f}",
                f"{row.cold:.1f}",
                row.starts,
                f"{row.idle_money:.4f}",
                f"{row.saved_money:.4f}",
            )
            for row in rows
        ],
    )
    return 0
