"""``relight status``."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer

from relight.base.settings import Settings
from relight.base.units import format_duration
from relight.cli.output import Format, print_json, print_table
from relight.cli.state import need_platform


def command(
    output: Annotated[Format, typer.Option("-o", "--output", help="How to print.")] = "table",
) -> None:
    """Show whether local mode runs, and its addresses.

    Exits with 3 if it does not run.
    """
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
    }
    if output == "json":
        print_json(facts | {"functions": platform.functions, "broker": platform.broker, "uptime": round(uptime)})
        return
    print_table(("what", "where"), facts.items())
    print(f"\nfor kubectl and kn:  export KUBECONFIG={platform.kubeconfig}")
