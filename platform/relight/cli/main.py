"""The entry point of ``relight``: finds the command, runs it, and turns what it raises into a line and an exit code.

A command's module is imported only when that command is called: ``relight --help`` imports none of them, so that it
answers at once, and a part that is not installed costs only its own command.
"""

from __future__ import annotations

import difflib
import importlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relight.base.errors import RelightError
from relight.cli import exits


@dataclass(frozen=True)
class Command:
    """A command as ``relight --help`` lists it. ``module`` has ``command``: a function, or a ``typer.Typer``."""

    name: str
    module: str
    help: str
    panel: str


_MACHINE, _FUNCTIONS, _OBJECTS, _MODELS = "This machine", "Functions", "Objects", "Models and events"

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 80}

COMMANDS = (
    Command("up", "relight.cli.up", "Start local mode: Knative on this machine.", _MACHINE),
    Command("down", "relight.cli.down", "Stop local mode.", _MACHINE),
    Command("status", "relight.cli.status", "Show what runs, and where.", _MACHINE),
    Command("demo", "relight.cli.demo", "Run the retrieval demo, from zero to answers.", _MACHINE),
    Command("doctor", "relight.cli.doctor", "Show what this machine, or a cluster, has and lacks.", _MACHINE),
    Command("version", "relight.cli.version", "Show the version of relight.", _MACHINE),
    Command("new", "relight.cli.new", "Write the folder of a new function.", _FUNCTIONS),
    Command("deploy", "relight.cli.deploy", "Deploy a function's folder and wait until it is ready.", _FUNCTIONS),
    Command("wheel", "relight.cli.wheel", "Lay relight's wheel into a function's folder.", _FUNCTIONS),
    Command("call", "relight.cli.call", "Call a function and print its answer.", _FUNCTIONS),
    Command("open", "relight.cli.open", "Open a function's URL in the browser.", _FUNCTIONS),
    Command("logs", "relight.cli.logs", "Print what a function's replicas have logged.", _FUNCTIONS),
    Command("warm", "relight.cli.warm", "See what is kept warm, and why; simulate policies.", _FUNCTIONS),
    Command("cost", "relight.cli.cost", "Show what functions cost, busy, idle and cold.", _FUNCTIONS),
    Command("traffic", "relight.cli.traffic", "Show or change which revision gets how much.", _FUNCTIONS),
    Command("render", "relight.cli.render", "Print the objects that apply or deploy would send.", _OBJECTS),
    Command("diff", "relight.cli.diff", "Show what apply would change.", _OBJECTS),
    Command("apply", "relight.cli.apply", "Apply manifests: files, folders, kustomizations.", _OBJECTS),
    Command("get", "relight.cli.get", "List objects of a kind, or show one.", _OBJECTS),
    Command("describe", "relight.cli.describe", "Show one object with its conditions and events.", _OBJECTS),
    Command("delete", "relight.cli.delete", "Delete objects.", _OBJECTS),
    Command("convert", "relight.cli.convert", "Turn manifests of other platforms into relight's.", _OBJECTS),
    Command("model", "relight.cli.model", "Push and pull models, make them smaller or quicker.", _MODELS),
    Command("cache", "relight.cli.cache", "See and fill the cache of models on this node.", _MODELS),
    Command("index", "relight.cli.index", "Plan, build and see a collection's vector index.", _MODELS),
    Command("eval", "relight.cli.evaluate", "Measure how well retrieval answers a data set.", _MODELS),
    Command("events", "relight.cli.events", "Send events, and see what becomes of them.", _MODELS),
)

_OVERVIEW = """usage: relight COMMAND [OPTIONS] [ARGUMENTS]

Serverless functions for models and retrieval, on this machine or on Knative.

Examples:
  relight up                              start local mode
  relight new step hello                  write a function's folder
  relight deploy hello                    deploy it; prints its URL
  relight call hello -d '{"text":"hi"}'   call it, from zero
  relight get ksvc                        list what is deployed
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(guard(lambda: run(arguments)))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; what it raises is the caller's to explain."""
    first = arguments[0] if arguments else "--help"
    if first in ("--version", "-V"):
        first, arguments = "version", ["version", *arguments[1:]]
    known = {command.name: command for command in COMMANDS}
    if first in known:
        return _invoke(_load(known[first]), arguments[1:], f"relight {first}")
    if first in ("--help", "-h"):
        print(overview())
        return exits.OK
    if first.startswith("-"):
        return _usage(f"{first}: options stand after the command", "relight --help")
    near = difflib.get_close_matches(first, known, n=1)
    return _usage(f"there is no command {first!r}", f"relight {near[0]}" if near else "relight --help")


def guard(action: Callable[[], int]) -> int:
    """The exit code of an action, whatever happens: expected errors in a line or two, no traceback at the user."""
    try:
        code = action()
        sys.stdout.flush()
        return code
    except RelightError as error:
        for line in exits.explain(error):
            print(line, file=sys.stderr)
        return exits.exit_code(error)
    except KeyboardInterrupt:
        # An impatient second Ctrl-C must not turn the way out into a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return exits.INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has gone (`relight get ksvc | head -1`): nothing to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.FAILED
    except Exception as error:
        return _unexpected(error)


def _unexpected(error: Exception) -> int:
    import traceback

    if os.environ.get("RELIGHT_DEBUG"):
        traceback.print_exception(error)
        return exits.FAILED
    print(f"error: {type(error).__name__}: {error}. This is a fault in relight, not in what you did.", file=sys.stderr)
    try:
        with tempfile.NamedTemporaryFile("w", prefix="relight-", suffix=".log", delete=False) as file:
            traceback.print_exception(error, file=file)
        print(f"hint: the traceback is in {file.name}; RELIGHT_DEBUG=1 shows it here", file=sys.stderr)
    except OSError:
        print("hint: RELIGHT_DEBUG=1 shows the traceback", file=sys.stderr)
    return exits.FAILED


def _usage(message: str, hint: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    print(f"hint: {hint}", file=sys.stderr)
    return exits.USAGE


def _load(command: Command) -> Any:
    import typer

    from relight.base.errors import PlatformError

    try:
        module = importlib.import_module(command.module)
    except ModuleNotFoundError as error:
        missing = error.name or command.module
        if missing == command.module:
            raise PlatformError(f"relight {command.name} is not part of this installation") from None
        if missing.partition(".")[0] == "relight":
            raise
        raise PlatformError(
            f"relight {command.name} needs the package {missing}: pip install 'relight[local]'"
        ) from None
    found = module.command
    if isinstance(found, typer.Typer):
        return found
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(context_settings=CONTEXT)(found)
    return app


def overview() -> str:
    """What ``relight --help`` prints."""
    lines = [_OVERVIEW]
    for panel in dict.fromkeys(command.panel for command in COMMANDS):
        lines.append(f"{panel}:")
        lines += (f"  {command.name:<10}{command.help}" for command in COMMANDS if command.panel == panel)
        lines.append("")
    return "\n".join([*lines, "relight COMMAND --help tells more about each."])


def _invoke(app: Any, arguments: Sequence[str], name: str) -> int:
    import typer
    from typer.main import get_command

    try:
        code = get_command(app).main(args=list(arguments), prog_name=name, standalone_mode=False)
    except typer.TyperException as error:
        # The command that was meant may be one below this one: `relight events send`.
        meant = getattr(getattr(error, "ctx", None), "command_path", None) or name
        return _usage(error.format_message(), f"{meant} --help") if error.exit_code == 2 else _failed(error)
    except typer.Abort:
        return exits.INTERRUPTED
    if code == exits.INTERRUPTED:
        # What typer makes of Ctrl-C; ``guard`` says how it ends.
        raise KeyboardInterrupt
    return code if isinstance(code, int) else exits.OK


def _failed(error: Any) -> int:
    print(f"error: {error.format_message()}", file=sys.stderr)
    return int(error.exit_code)


def package_version() -> str:
    """The version of the installed distribution."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("relight")
    except PackageNotFoundError:  # run from a folder that was never installed
        return "0+" + Path(__file__).parent.parent.name
