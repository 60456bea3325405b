"""``relight up``: Knative on this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relight.base import logs
from relight.base.errors import NotFound
from relight.base.settings import Settings

if TYPE_CHECKING:
    from relight.warm.running import Running
    from relight.warm.settings import WarmSettings

WARM_MARK = "warm-policy"
"""A file of local mode's folder that is there while revisions may have values of the warm policy: also after a kill."""

SWITCH = 0.001
"""Seconds that a thread keeps the interpreter's lock while another wants it."""
CLOSING = 10.0
"""Seconds that the loop and its threads have to end once the platform has stopped."""


def command(
    functions: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the functions that RELIGHT_FUNCTION names. Default: ./functions where there is one."
        ),
    ] = None,
    api_port: Annotated[int | None, typer.Option(help="Kubernetes API (TLS); 0: a free port.")] = None,
    functions_port: Annotated[int | None, typer.Option(help="Function URLs; 0: a free port.")] = None,
    broker_port: Annotated[int | None, typer.Option(help="Broker ingress; 0: a free port.")] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Treat events as Knative does, also where that is less kind."),
    ] = False,
    resources: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=QUANTITY,…",
            help="What this machine has, instead of what is found, such as cpu=4,nvidia.com/gpu=2.",
            show_default=False,
        ),
    ] = None,
    trace_decisions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Append each decision of the autoscaler, as a line of JSON.", show_default=False
        ),
    ] = None,
    warm: Annotated[
        str | None,
        typer.Option(
            "--warm", metavar="MODE", help="The warm policy: off, dry-run or on. Default: off.", show_default=False
        ),
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    ready_fd: Annotated[
        int | None, typer.Option(hidden=True, help="Write the addresses as JSON to this descriptor.")
    ] = None,
) -> int:
    """Start the platform on this machine and keep it until Ctrl-C."""
    if functions is None and (Path.cwd() / "functions").is_dir():
        functions = Path.cwd() / "functions"
    settings = Settings.from_environ(
        functions=functions.resolve() if functions else None,
        api_port=api_port,
        functions_port=functions_port,
        broker_port=broker_port,
        strict=True if strict else None,
        resources=resources,
        trace_decisions=trace_decisions.resolve() if trace_decisions else None,
        log_level=log_level,
    )
    if settings.functions is not None and not settings.functions.is_dir():
        raise NotFound(f"{settings.functions}: no such folder of functions")
    logs.configure(settings.log_level)
    return serve(settings, ready_fd, _warm_settings(warm))


def serve(settings: Settings, ready_fd: int | None = None, warm: WarmSettings | None = None) -> int:
    """Run a platform in this process until SIGINT or SIGTERM. A second one ends it at once."""
    import uvloop

    # The thread that writes events to disk holds up their senders while it waits for the interpreter's lock: not for
    # the 5 ms that a busy loop may keep it by default.
    sys.setswitchinterval(SWITCH)
    last: list[threading.Timer] = []

    async def served() -> int:
        code = await _serve(settings, ready_fd, warm)
        # All is stopped and written by now, but uvloop was seen to wait for ever in the loop's close after it had been
        # refused connections (aiokafka's, with the broker gone).
        timer = threading.Timer(CLOSING, os._exit, (code,))
        timer.daemon = True
        timer.start()
        last.append(timer)
        return code

    try:
        return uvloop.run(served())
    finally:
        for timer in last:
            timer.cancel()


async def _serve(settings: Settings, ready_fd: int | None, warm: WarmSettings | None) -> int:
    from relight.local.supervisor import Platform

    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask() -> None:
        if asked.is_set():
            # Replicas see their control socket close and drain by themselves.
            os._exit(130)
        asked.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ask)
    platform = Platform(settings)
    policy: Running | None = None
    try:
        await platform.start()
        status = platform.status()
        if warm is not None or (settings.home.path / WARM_MARK).exists():
            policy = await asyncio.to_thread(_start_warm, settings, status, warm)
        if ready_fd is not None:
            os.write(ready_fd, json.dumps(status).encode() + b"\n")
            os.close(ready_fd)
        if sys.stderr.isatty():
            typer.echo(_banner(status), err=True)
        failed = loop.create_task(platform.failed())
        stop = loop.create_task(asked.wait())
        await asyncio.wait({failed, stop}, return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            stop.cancel()
            return 1
        failed.cancel()
        return 0
    finally:
        if policy is not None and await asyncio.to_thread(policy.stop):
            (settings.home.path / WARM_MARK).unlink(missing_ok=True)
        await platform.stop()


def _warm_settings(asked: str | None) -> WarmSettings | None:
    """What the warm policy is told; None: it is off. It counts with numpy, which nothing else here needs."""
    mode = asked or os.environ.get("RELIGHT_WARM") or "off"
    if mode == "off":
        return None
    from relight.warm.settings import WarmSettings

    return WarmSettings.from_environ(os.environ, mode=mode)


def _start_warm(settings: Settings, status: dict[str, object], warm: WarmSettings | None) -> Running | None:
    """The warm policy beside this platform, in a thread of its own; through the API, as on any cluster.

    Off, it takes back what one has left that was killed. The Kubernetes client takes half a second and 126 MB to
    import: this is called only where there is something to do.
    """
    mark = settings.home.path / WARM_MARK
    from relight.cli.fetching import fetch
    from relight.net.kube import Kube
    from relight.warm.acting import restore
    from relight.warm.running import Running
    from relight.warm.sources import RouterSource

    if warm is None:
        with Kube.from_kubeconfig(settings.home.kubeconfig) as kube:
            restore(kube, "the warm policy is off")
        mark.unlink(missing_ok=True)
        return None
    mark.touch()
    running = Running(
        Kube.from_kubeconfig(settings.home.kubeconfig), RouterSource(str(status["functions"]), fetch), warm
    )
    running.start()
    return running


def _banner(status: dict[str, object]) -> str:
    return (
        f"relight is up (Ctrl-C stops it)\n"
        f"  functions   {status['functions']}/NAMESPACE/NAME\n"
        f"  broker      {status['broker']}/NAMESPACE/BROKER\n"
        f"  kubectl     export KUBECONFIG={status['kubeconfig']}"
    )
