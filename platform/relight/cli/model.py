"""``relight model``: the model repository. ``optimize`` is in ``optimizing``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relight.base.errors import NotFound
from relight.base.settings import Settings
from relight.cli import optimizing, storing
from relight.cli.output import Format, note, print_json, print_table
from relight.cli.state import find_platform

if TYPE_CHECKING:
    from relight.store.repository import Repository

command = typer.Typer(
    help="Push models, list them, make them smaller or quicker.",
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)

_REPOSITORY = typer.Option(
    "--repository",
    metavar="URI",
    help="Model repository; by default $RELIGHT_REPOSITORY, then local mode's.",
    show_default=False,
)
_OUTPUT = typer.Option("-o", "--output", help="How to print.")


@command.command()
def push(
    source: Annotated[Path, typer.Argument(help="A folder with a model, or a model's file.")],
    name: Annotated[str, typer.Argument(help="The model's name in the repository.")],
    repository: Annotated[str | None, _REPOSITORY] = None,
    output: Annotated[Format, _OUTPUT] = "table",
) -> None:
    """Store a folder as the next version of a model.

    Versions never change: pushing again makes a new one. Functions take it up
    when they are deployed again. With RELIGHT_ENCRYPTION_KEY set, it is stored
    encrypted.

    \b
    relight model push ./minilm minilm
    relight model push ./minilm s3://bucket/models/minilm
    """
    if not source.exists():
        raise NotFound(f"{source}: no such file or folder")
    target, name = locate(name, repository)
    with _progress(f"{source} → {name}") as advance:
        version = target.push(source, name, on_progress=advance)
    if output == "json":
        print_json({"model": name, "version": version, "repository": target.uri})
    else:
        print(f"{name} version {version} pushed to {target.uri}{', encrypted' if target.keys else ''}")


storing.add(command)


@command.command("list")
def list_models(
    repository: Annotated[str | None, _REPOSITORY] = None, output: Annotated[Format, _OUTPUT] = "table"
) -> None:
    """List the models of the repository."""
    target = open_repository(repository)
    models = [(name, target.versions(name)) for name in target.models()]
    if output == "json":
        print_json([{"model": name, "versions": versions} for name, versions in models])
    elif models:
        print_table(("model", "latest", "versions"), [(name, found[-1], len(found)) for name, found in models])
    else:
        note(f"no models in {target.uri}; relight model push SOURCE NAME stores one")


@command.command()
def versions(
    name: Annotated[str, typer.Argument(help="The model's name.")],
    repository: Annotated[str | None, _REPOSITORY] = None,
    output: Annotated[Format, _OUTPUT] = "table",
) -> None:
    """List the versions of a model, with what they consist of."""
    from relight.base.units import format_bytes

    target = open_repository(repository)
    if not target.versions(name):
        target.latest(name)  # raises, and says what there is instead
    rows = [(version, target.manifest(name, version).files) for version in target.versions(name)]
    if output == "json":
        print_json([{"version": version, "files": {file.path: file.size for file in files}} for version, files in rows])
        return
    print_table(
        ("version", "files", "size"),
        [(version, len(files), format_bytes(sum(file.size for file in files))) for version, files in rows],
    )


optimizing.add(command)


def open_repository(uri: str | None = None) -> Repository:
    """The repository that is meant: as given, ``$RELIGHT_REPOSITORY``, that of local mode if it runs, its default."""
    from relight.store.keys import Keys
    from relight.store.repository import Repository

    settings = Settings.from_environ(repository=uri)
    keys = Keys.from_environ(settings.environ)
    if uri is None and not settings.environ.get("RELIGHT_REPOSITORY"):
        platform = find_platform(settings.home)
        return Repository.open(platform.repository if platform else settings.repository, keys)
    return Repository.open(settings.repository, keys)


def locate(name: str, repository: str | None) -> tuple[Repository, str]:
    """A repository and a model's name, which may be given as one: ``s3://bucket/models/bert``."""
    if "://" in name and repository is None:
        repository, _, name = name.rstrip("/").rpartition("/")
    return open_repository(repository), name


@contextmanager
def _progress(text: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal's stderr; nothing elsewhere, for the result says it all."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
