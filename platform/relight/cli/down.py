"""``relight down``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from relight.base.settings import Settings
from relight.cli.state import need_platform, stop_platform


def command(
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="How long it may take to drain.")] = 60.0,
    force: Annotated[bool, typer.Option("--force", help="Kill it when that time is over.")] = False,
) -> None:
    """Stop local mode: requests in flight are answered, then it ends.

    What is deployed stays deployed, and runs again after `relight up`.
    """
    platform = need_platform(Settings.from_environ().home)
    print(f"stopping local mode (pid {platform.pid}) …", file=sys.stderr)
    killed = stop_platform(platform, timeout, kill=force)
    print("local mode was killed" if killed else "local mode has stopped")
