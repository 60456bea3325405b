"""``relight events``."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from relight.base.errors import BadInput, NotFound, PlatformError, Problem
from relight.base.ids import new_id
from relight.cli.calls import pieces, request
from relight.cli.choosing import DELIVERY, Chosen, choosing
from relight.cli.inspection import Inspection
from relight.cli.output import Format, note, print_json
from relight.cli.target import Context, Kubeconfig, Namespace
from relight.cli.telling import passing, print_deliveries, trace_lines

command = typer.Typer(
    help="Send events to a broker, and see what becomes of them.",
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
_TIMEOUT = 30.0
"""Seconds for a broker to accept an event: it only has to write it down."""


@command.callback()
def events() -> None:
    """Send events to a broker, and see what becomes of them."""


_Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="At most so many.")]
_Output = Annotated[Format, typer.Option("-o", "--output", help="How to print.")]


@command.command("ls")
@choosing(*DELIVERY)
def ls(chosen: Chosen, limit: _Limit = 1000, output: _Output = "table") -> None:
    """List the deliveries that are still to do, oldest first."""
    _list(chosen, "pending", limit, output, "nothing waits")


@command.command("dlq")
@choosing(*DELIVERY)
def dlq(
    chosen: Chosen,
    limit: _Limit = 1000,
    discard: Annotated[bool, typer.Option("--discard", help="Drop them for good instead of listing them.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="With --discard: all of them, without a filter.")] = False,
    output: _Output = "table",
) -> None:
    """List the dead letters: deliveries that were given up, with the reason, newest first.

    Those that a dead-letter sink of yours took are not here.
    """
    if not discard:
        _list(chosen, "dead", limit, output, "there are no dead letters")
        return
    _need_filter(chosen, everything, "--discard")
    answer = chosen.inspection.post("discard", chosen.with_(limit=str(limit)))
    print_json(answer) if output == "json" else print(f"discarded: {_letters(answer['discarded'])}")


@command.command("replay")
@choosing(*DELIVERY)
def replay(
    chosen: Chosen,
    limit: _Limit = 10_000,
    everything: Annotated[bool, typer.Option("--all", help="All of them, without a filter.")] = False,
    output: _Output = "table",
) -> None:
    """Deliver dead letters again, to the Triggers that had given them up.

    \b
    relight events replay --trigger ocr --where "type = 'page.scanned'"
    """
    _need_filter(chosen, everything, "replay")
    answer = chosen.inspection.post("replay", chosen.with_(limit=str(limit)))
    if output == "json":
        print_json(answer)
        return
    print(f"delivered again: {_letters(answer['replayed'])}")
    if answer["without_trigger"]:
        note(f"{answer['without_trigger']} more stay: their Trigger is gone")


@command.command("tail")
@choosing("broker", "type", "id", "where")
def tail(chosen: Chosen, output: _Output = "table") -> None:
    """Print the events that pass from now on, replies included, until Ctrl-C; -o json prints one per line."""
    with chosen.inspection.lines("tail", chosen.fields) as rows:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False) if output == "json" else passing(row), flush=True)


@command.command("trace")
def trace(
    id: Annotated[str, typer.Argument(metavar="ID", help="An event's id, or a trace id (of a traceparent).")],
    output: _Output = "table",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Print what became of an event: every hop with its times, waits and tries, and the replies that followed."""
    answer = Inspection(kubeconfig, context).get(f"trace/{id}", {})
    if output == "json":
        print_json(answer)
        return
    for line in trace_lines(answer["events"], time.time()):
        print(line)


def _letters(number: int) -> str:
    return f"{number} dead letter" + ("" if number == 1 else "s")


def _need_filter(chosen: Chosen, everything: bool, what: str) -> None:
    """What cannot be taken back is not done to everything by an oversight."""
    if not everything and not any(chosen.fields.values()):
        raise BadInput(f"{what} needs a filter, such as --trigger NAME, or --all")


def _list(chosen: Chosen, state: str, limit: int, output: Format, nothing: str) -> None:
    rows = chosen.inspection.get("deliveries", chosen.with_(limit=str(limit), state=state))["deliveries"]
    if output == "json":
        print_json(rows)
    elif rows:
        print_deliveries(rows, time.time())
    else:
        note(nothing)


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
