"""``relight call``."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from relight.base.errors import BadInput, NotFound, Problem
from relight.base.units import format_duration
from relight.cli import exits
from relight.cli.awaiting import explained
from relight.cli.calls import pieces, request
from relight.cli.output import note, waiting
from relight.cli.target import Context, Kubeconfig, Namespace


def command(
    name: Annotated[str, typer.Argument(help="The function's name, or a URL.")],
    data: Annotated[
        str | None,
        typer.Option(
            "-d", "--data", metavar="DATA", help="Body; @FILE reads a file, @- reads stdin.", show_default=False
        ),
    ] = None,
    path: Annotated[str, typer.Option(metavar="PATH", help="Path below the function's URL.")] = "/",
    method: Annotated[
        str | None, typer.Option("-X", "--method", help="By default POST with data, else GET.", show_default=False)
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("-H", "--header", metavar="NAME: VALUE", help="May be repeated.")
    ] = None,
    timing: Annotated[bool, typer.Option("--timing", help="Show on stderr where the time went.")] = False,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="For the first byte of the answer.")
    ] = 310.0,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> int:
    """Call a function and print its answer, from zero if need be.

    JSON is assumed for data unless a Content-Type is given. Exits with 0 for
    2xx, 4 for 404, 6 for 504, 7 for other 4xx and 1 for 5xx.

    \b
    relight call hello -d '{"text": "to be or not to be"}'
    relight call embed --path /v1/embeddings -d @request.json --timing
    """
    headers = _headers(header or [])
    body = _body(data)
    if body is not None and "content-type" not in headers:
        headers["content-type"] = "application/json"
    url = _url(name, path, namespace, kubeconfig, context)
    verb = (method or ("GET" if body is None else "POST")).upper()
    begun = time.monotonic()
    with ExitStack() as stack:
        told = f"{verb} {url}: waiting for an answer; at zero, a replica is started first"
        with waiting(told) as shown, ExitStack() as explaining:
            if "://" not in name:
                explaining.enter_context(explained(name, namespace, kubeconfig, context, shown.show))
            response = stack.enter_context(request(verb, url, headers, body, timeout))
        first = time.monotonic()
        for piece in pieces(response, url):
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
        if sys.stdout.isatty():
            print()
        if timing:
            note(f"status {response.status}, first byte {_ms(first - begun)}, all {_ms(time.monotonic() - begun)}")
            if value := response.getheader("server-timing"):
                note(f"server-timing: {value}")
    if response.status >= 400:
        note(f"error: {url} answered {response.status} {response.reason}")
    return exit_status(response.status)


def exit_status(status: int) -> int:
    """The exit code for an HTTP status."""
    if status < 400:
        return exits.OK
    if status == 404:
        return exits.NOT_FOUND
    if status in (408, 504):
        return exits.TIMED_OUT
    return exits.INVALID if status < 500 else exits.FAILED


def _ms(seconds: float) -> str:
    return format_duration(round(seconds, 4))


def _headers(lines: list[str]) -> dict[str, str]:
    problems = [
        Problem("-H", f"{line!r}: expected NAME: VALUE")
        for line in lines
        if not line.partition(":")[0].strip() or ":" not in line
    ]
    if problems:
        raise BadInput.of(problems)
    return {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _body(data: str | None) -> bytes | None:
    if data is None or not data.startswith("@"):
        return None if data is None else data.encode()
    if data == "@-":
        return sys.stdin.buffer.read()
    try:
        return Path(data[1:]).read_bytes()
    except OSError as error:
        raise NotFound(f"{data[1:]}: {error.strerror}") from None


def _url(name: str, path: str, namespace: str | None, kubeconfig: Path | None, context: str | None) -> str:
    if "://" in name:
        base = name
    else:
        from relight.cli.kube import function_url

        base = function_url(name, namespace, kubeconfig, context)
    return base.rstrip("/") + "/" + path.lstrip("/")
