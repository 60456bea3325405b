"""``relight status``."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from relight.base.errors import BadInput
from relight.base.settings import Settings
from relight.base.units import format_bytes, format_duration
from relight.cli.kube import connect
from relight.cli.output import AnyFormat, print_table, print_value
from relight.cli.state import need_platform
from relight.cli.target import Context, Kubeconfig, Namespace


def command(
    name: Annotated[str | None, typer.Argument(help="A function.", show_default=False)] = None,
    output: Annotated[AnyFormat, typer.Option("-o", "--output", help="How to print.")] = "table",
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Show how a function stands; without a name, whether local mode runs.

    Of a function: whether it is ready and if not, what it waits for; its
    revisions with their share of the traffic and their replicas. Without a
    name: local mode's addresses; exits with 3 if it does not run.
    """
    if name is not None:
        _print_standing(name, output, namespace, kubeconfig, context)
        return
    if namespace or kubeconfig or context:
        raise BadInput("expected the name of a function: relight get ksvc lists them")
    settings = Settings.from_environ()
    platform = need_platform(settings.home)
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    uptime = max(0.0, now - platform.started / os.sysconf("SC_CLK_TCK"))
    facts = {
        "pid": platform.pid,
        "uptime": format_duration(round(uptime)),
        "functions": platform.functions + "/NAMESPACE/NAME",
        "broker": platform.broker + "/NAMESPACE/BROKER",
        "api": platform.api,
        "repository": platform.repository,
        "kubeconfig": str(platform.kubeconfig),
        "home": str(settings.home.path),
        "resources": ", ".join(f"{name} {_amount(name, count)}" for name, count in platform.resources.items()),
        "limits by": platform.limits,
    }
    if output != "table":
        del facts["limits by"]
        plain = {"functions": platform.functions, "broker": platform.broker, "uptime": round(uptime)}
        print_value(facts | plain | {"resources": _quantities(platform.resources), "limits": platform.limits}, output)
        return
    print_table(("what", "where"), facts.items())
    print(f"\nfor kubectl and kn:  export KUBECONFIG={platform.kubeconfig}")


def _amount(name: str, count: int) -> str:
    if name == "cpu":
        return f"{count / 1000:g}"
    return format_bytes(count) if name == "memory" else str(count)


def _quantities(amounts: Mapping[str, int]) -> dict[str, str]:
    """Amounts as Kubernetes writes them."""
    return {name: f"{count}m" if name == "cpu" else str(count) for name, count in amounts.items()}


def _print_standing(
    name: str, output: AnyFormat, namespace: str | None, kubeconfig: Path | None, context: str | None
) -> None:
    from relight.cluster.standing import standing

    with connect(kubeconfig, context, namespace) as link:
        found = standing(link.kube, name, link.namespace)
    if output != "table":
        print_value(dataclasses.asdict(found), output)
        return
    said = {"True": "ready", "False": "failed"}.get(found.ready, "waiting")
    print(f"{found.name}: {said}" + (f": {found.reason}" if found.reason else ""))
    if found.url:
        print(f"url: {found.url}")
    print()
    print_table(
        ("revision", "ready", "percent", "tags", "role", "replicas", "reason"),
        [
            (
                *(one.name, one.ready, one.percent, ",".join(one.tags), one.role),
                *("?" if one.replicas is None else one.replicas, one.reason),
            )
            for one in found.revisions
        ],
        wrap=True,
    )
