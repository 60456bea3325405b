"""Which cluster a command talks to: as told, else local mode where it runs, else what kubectl would take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from relight.base.errors import NotFound
from relight.base.settings import Settings
from relight.cli.exits import NotRunning
from relight.cli.state import Platform, find_platform

Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="By default $RELIGHT_KUBECONFIG, then local mode's if it runs, then kubectl's.",
        show_default=False,
    ),
]
Context = Annotated[
    str | None, typer.Option("--context", metavar="NAME", help="Context of the kubeconfig.", show_default=False)
]
Namespace = Annotated[
    str | None,
    typer.Option("-n", "--namespace", metavar="NAME", help="By default the context's.", show_default=False),
]


@dataclass(frozen=True)
class Target:
    """A cluster: its kubeconfig, and local mode's own addresses where it is that."""

    kubeconfig: Path
    context: str | None
    platform: Platform | None


def find_target(kubeconfig: Path | None, context: str | None, settings: Settings | None = None) -> Target:
    """The cluster to talk to. NotRunning: nothing is configured; NotFound: the file that was named is not there."""
    settings = settings or Settings.from_environ()
    given = kubeconfig or _path(settings.environ.get("RELIGHT_KUBECONFIG"))
    platform = find_platform(settings.home)
    if given is not None:
        if not given.is_file():
            raise NotFound(f"kubeconfig {given}: no such file")
        same = platform is not None and given.resolve() == platform.kubeconfig.resolve()
        return Target(given, context, platform if same else None)
    if platform is not None:
        return Target(platform.kubeconfig, context, platform)
    # kubectl merges a list of files; the first that exists is what is taken here.
    listed = [Path(part) for part in settings.environ.get("KUBECONFIG", "").split(":") if part]
    for candidate in listed or [Path.home() / ".kube" / "config"]:
        if candidate.is_file():
            return Target(candidate, context, None)
    raise NotRunning(f"local mode is not running on {settings.home.path}, and there is no kubeconfig of a cluster")


def _path(value: str | None) -> Path | None:
    return Path(value).expanduser() if value else None
