"""``relight traffic``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from relight.base.errors import BadInput, Deadline, LoadFailed
from relight.cli import exits
from relight.cli.kube import Connection, connect
from relight.cli.output import Format, note, print_json, print_table
from relight.cli.target import Context, Kubeconfig, Namespace

if TYPE_CHECKING:
    from relight.cluster.samples import Samples

_SERVING = "serving.knative.dev/v1"
_SETTLING = 10.0
"""Seconds in which a changed split shows in the Service's status; after that it is printed as it is."""


def command(
    name: Annotated[str, typer.Argument(help="The function.")],
    canary: Annotated[
        int | None,
        typer.Option(metavar="PERCENT", min=0, max=100, help="Share of the new revision.", show_default=False),
    ] = None,
    revision: Annotated[
        str | None,
        typer.Option(metavar="REVISION", help="With --canary: which one; by default the newest.", show_default=False),
    ] = None,
    tag: Annotated[
        str | None,
        typer.Option(
            metavar="TAG", help="With --canary: a name to call it by, whatever its share.", show_default=False
        ),
    ] = None,
    auto: Annotated[
        bool, typer.Option("--auto", help="Go on by what both revisions answer, to everything or nothing.")
    ] = False,
    promote: Annotated[bool, typer.Option("--promote", help="Give the canary everything.")] = False,
    rollback: Annotated[bool, typer.Option("--rollback", help="Give the old revision everything.")] = False,
    prometheus: Annotated[
        str | None,
        typer.Option(metavar="URL", help="For --auto on a cluster: where its Prometheus answers.", show_default=False),
    ] = None,
    output: Annotated[Format, typer.Option("-o", "--output", help="How to print.")] = "table",
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> int:
    """Show or change which revision of a function gets how much of its traffic.

    --auto steps the canary through the shares of relight.yaml and promotes it,
    or rolls it back (and exits with 1) when it fails more often or is slower
    than the old revision or the SLO allows.

    \b
    relight traffic bert --canary 10 --tag next
    relight traffic bert --auto
    relight traffic bert --rollback
    """
    from relight.cluster import traffic

    if promote + rollback > 1 or ((promote or rollback) and (canary is not None or auto)):
        raise BadInput("expected one of --canary (with --auto or without), --auto, --promote and --rollback")
    if canary is None and (tag or revision):
        raise BadInput("--tag and --revision say more about --canary PERCENT")
    code = exits.OK
    with connect(kubeconfig, context, namespace) as link:
        if canary is not None:
            out = traffic.give(link.kube, name, link.namespace, revision, canary, tag)
            note(f"{out.canary} has {out.percent} %, {out.stable} the rest")
        if promote:
            note(f"{traffic.promote(link.kube, name, link.namespace)} has everything")
        if rollback:
            note(f"{traffic.rollback(link.kube, name, link.namespace)} has everything again")
        if auto:
            code = _drive(link, name, prometheus)
        changed = canary is not None or promote or rollback or auto
        service = _settled(link, name) if changed else link.kube.get(_SERVING, "Service", name, link.namespace)
    _print(service, output)
    return code


def _settled(link: Connection, name: str) -> dict[str, Any]:
    """The Service once its status shows what was changed, or as it is after a while."""
    from relight.cluster.waiting import wait_ready

    service = link.kube.get(_SERVING, "Service", name, link.namespace)
    try:
        return wait_ready(link.kube, service, _SETTLING)
    except (Deadline, LoadFailed) as error:
        note(f"warning: {error.message}")
        return link.kube.get(_SERVING, "Service", name, link.namespace)


def _drive(link: Connection, name: str, prometheus: str | None) -> int:
    from relight.cluster.canary import drive
    from relight.decide.canary import Decision

    def tell(decision: Decision) -> None:
        note(f"{decision.verb}: {decision.reason}")

    last = drive(link.kube, name, link.namespace, _samples(link, prometheus), on_decision=tell)
    return exits.OK if last.verb == "promote" else exits.FAILED


def _samples(link: Connection, prometheus: str | None) -> Samples:
    from relight.cli.fetching import fetch
    from relight.cluster.samples import PrometheusSamples, RouterSamples

    if prometheus is not None:
        return PrometheusSamples(prometheus, link.namespace, fetch)
    if link.target.platform is not None:
        return RouterSamples(link.target.platform.functions, link.namespace, fetch)
    raise BadInput("--auto needs what the revisions answered: on a cluster, --prometheus URL")


def _print(service: dict[str, object], output: Format) -> None:
    from relight.cluster import traffic

    out = traffic.pair(service)
    rows = traffic.shares(service)
    if output == "json":
        print_json([vars(row) for row in rows])
        return
    role = {out.stable: "stable", out.canary: "canary"} if out else {}
    print_table(
        ("revision", "percent", "tag", "role", "url"),
        [(row.revision, row.percent, row.tag or "", role.get(row.revision, ""), row.url or "") for row in rows],
    )
