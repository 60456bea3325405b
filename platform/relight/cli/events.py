"""``relight events``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from relight.base.errors import BadInput, NotFound, PlatformError, Problem
from relight.base.ids import new_id
from relight.cli.calls import pieces, request
from relight.cli.output import Format, print_json
from relight.cli.target import Context, Kubeconfig, Namespace

command = typer.Typer(
    help="Send events to a broker.",
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
_TIMEOUT = 30.0
"""Seconds for a broker to accept an event: it only has to write it down."""


@command.callback()
def events() -> None:
    """Send events to a broker."""


@command.command()
def send(
    type: Annotated[str, typer.Argument(metavar="TYPE", help="The event's type, such as com.example.text.")],
    data: Annotated[
        str | None,
        typer.Option(
            "-d", "--data", metavar="JSON", help="Its data; @FILE reads a file, @- reads stdin.", show_default=False
        ),
    ] = None,
    source: Annotated[str, typer.Option(metavar="URI", help="Where it comes from.")] = "/relight/cli",
    id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="By default a random one.", show_default=False)
    ] = None,
    subject: Annotated[str | None, typer.Option(metavar="TEXT", help="What it is about.", show_default=False)] = None,
    content_type: Annotated[str, typer.Option(metavar="TYPE", help="Of the data.")] = "application/json",
    extension: Annotated[
        list[str] | None, typer.Option("-e", "--extension", metavar="NAME=VALUE", help="May be repeated.")
    ] = None,
    broker: Annotated[str, typer.Option(metavar="NAME", help="Which broker.")] = "default",
    output: Annotated[Format, typer.Option("-o", "--output", help="How to print.")] = "table",
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Send a CloudEvent to a broker, and wait until it is accepted.

    \b
    relight events send com.example.text -d '{"text": "to be or not to be"}'
    """
    from relight.cli.kube import broker_url
    from relight.wire.cloudevents import Event, encode_binary

    attributes = _extensions(extension or [])
    body = _data(data, content_type)
    if body is not None:
        attributes["datacontenttype"] = content_type
    if subject is not None:
        attributes["subject"] = subject
    event = Event(id or new_id(), source, type, attributes, body)
    headers, payload = encode_binary(event)
    url = broker_url(broker, namespace, kubeconfig, context)
    with request("POST", url, dict(headers), payload, _TIMEOUT) as response:
        answer = b"".join(pieces(response, url)).decode("utf-8", "replace").strip()
        status = response.status
    if status == 404:
        raise NotFound(f"broker {broker}: {answer or 'there is no such broker'}")
    if 400 <= status < 500:
        raise BadInput(f"broker {broker} refused the event: {answer or status}")
    if status >= 300:
        raise PlatformError(f"broker {broker} answered {status}: {answer or 'no reason given'}")
    if output == "json":
        print_json({"id": event.id, "type": type, "source": source, "broker": url})
    else:
        print(f"event {event.id} accepted by broker {broker}")


def _extensions(pairs: list[str]) -> dict[str, str | int | bool]:
    problems = [
        Problem("--extension", f"{pair!r}: expected NAME=VALUE, the name of lower-case letters and digits")
        for pair in pairs
        if "=" not in pair
        or not pair.partition("=")[0].isalnum()
        or pair.partition("=")[0] != pair.partition("=")[0].lower()
    ]
    if problems:
        raise BadInput.of(problems)
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def _data(data: str | None, content_type: str) -> bytes | None:
    if data is None:
        return None
    if data == "@-":
        body = sys.stdin.buffer.read()
    elif data.startswith("@"):
        try:
            body = Path(data[1:]).read_bytes()
        except OSError as error:
            raise NotFound(f"{data[1:]}: {error.strerror}") from None
    else:
        body = data.encode()
    if content_type == "application/json":
        try:
            json.loads(body)
        except ValueError as error:
            raise BadInput.of([Problem("--data", f"it is not JSON: {error}")]) from None
    return body
