"""``relight up``: Knative on this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from relight.base import logs
from relight.base.settings import Settings


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
        resources=resources,
        trace_decisions=trace_decisions.resolve() if trace_decisions else None,
        log_level=log_level,
    )
    logs.configure(settings.log_level)
    return serve(settings, ready_fd)


def serve(settings: Settings, ready_fd: int | None = None) -> int:
    """Run a platform in this process until SIGINT or SIGTERM. A second one ends it at once."""
    import uvloop

    return uvloop.run(_serve(settings, ready_fd))


async def _serve(settings: Settings, ready_fd: int | None) -> int:
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
    try:
        await platform.start()
        status = platform.status()
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
        await platform.stop()


def _banner(status: dict[str, object]) -> str:
    return (
        f"relight is up (Ctrl-C stops it)\n"
        f"  functions   {status['functions']}/NAMESPACE/NAME\n"
        f"  broker      {status['broker']}/NAMESPACE/BROKER\n"
        f"  kubectl     export KUBECONFIG={status['kubeconfig']}"
    )
