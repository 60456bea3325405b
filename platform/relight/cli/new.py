"""``relight new``: the folder of a function, from a template."""

from __future__ import annotations

import datetime
import shlex
import shutil
import sys
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from relight.base.errors import BadInput, Conflict, Problem
from relight.base.ids import suffix
from relight.wire.funcyaml import NAME, NAME_RULE

command = typer.Typer(
    help="Write the folder of a new function.",
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)

_RENAMED = {"funcignore": ".funcignore"}
"""Template file → its name in the folder: build tools leave out files whose name begins with a dot."""

_NAME = typer.Argument(help="The function's name.")
_FOLDER = typer.Argument(metavar="DIR", help="Where to write it; by default a folder of that name.", show_default=False)


@command.command()
def step(
    name: Annotated[str, _NAME],
    folder: Annotated[Path | None, _FOLDER] = None,
) -> None:
    """A step: JSON or an event in, JSON or an event out.

    The function counts words; change its run().
    """
    written = write("step", name, folder or Path(name), {})
    _announce(written, name, f"edit {written / 'function' / 'func.py'}")


@command.command()
def model(
    name: Annotated[str, _NAME],
    folder: Annotated[Path | None, _FOLDER] = None,
    repository_model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="The model to serve; by default one of the function's name.", show_default=False
        ),
    ] = None,
) -> None:
    """A model: tensors in, tensors out, from the model repository.

    The function serves an ONNX model; derive from sdk.Model to compute
    something of your own.
    """
    from relight.store.repository import check_name

    served = check_name(repository_model or name)
    _announce(
        write("model", name, folder or Path(name), {"__MODEL__": served}),
        f"{name} --path /v2/models/{served}",
        f"relight model push FOLDER {served}   # where the repository has it not yet",
    )


@command.command()
def models(
    name: Annotated[str, _NAME],
    folder: Annotated[Path | None, _FOLDER] = None,
) -> None:
    """All models of the model repository, by their names.

    The function loads a model when it is first asked for, and serves every
    version that its config.pbtxt says.
    """
    written = write("models", name, folder or Path(name), {})
    _announce(written, f"{name} --path /v2/models")


def write(template: str, name: str, folder: Path, values: dict[str, str]) -> Path:
    """Write a template as a function called ``name``; all of it or nothing.

    BadInput: no such name. Conflict: the folder has something in it.
    """
    if not NAME.fullmatch(name):
        raise BadInput.of([Problem("NAME", f"{name!r}: {NAME_RULE}")])
    if folder.is_dir() and any(folder.iterdir()):
        raise Conflict(f"{folder} is not empty: nothing was written")
    if folder.exists() and not folder.is_dir():
        raise Conflict(f"{folder} exists and is not a folder: nothing was written")
    created = datetime.datetime.now(datetime.UTC).replace(microsecond=0).isoformat().replace("+00:00", "Z")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    values = {"__NAME__": name, "__CREATED__": created, "__PYTHON__": python, **values}
    whole = folder.absolute()
    partial = whole.parent / f".{whole.name}-{suffix()}"
    try:
        whole.parent.mkdir(parents=True, exist_ok=True)
        _copy(resources.files("relight.cli") / "templates" / template, partial, values)
        if whole.is_dir():  # an empty folder stays the folder it is, for it may be somebody's current one
            for entry in partial.iterdir():
                entry.rename(whole / entry.name)
            partial.rmdir()
        else:
            partial.rename(whole)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise Conflict(f"{folder} could not be written: {error.strerror}") from error
    return folder


def _copy(source: Traversable, target: Path, values: dict[str, str]) -> None:
    target.mkdir()
    for entry in source.iterdir():
        if entry.is_dir():
            if entry.name != "__pycache__":
                _copy(entry, target / entry.name, values)
            continue
        text = entry.read_text(encoding="utf-8")
        for placeholder, value in values.items():
            text = text.replace(placeholder, value)
        (target / _RENAMED.get(entry.name, entry.name)).write_text(text, encoding="utf-8")


def _announce(folder: Path, call: str, *first: str) -> None:
    print(f"{folder}: written")
    print("next:")
    for line in (*first, f"relight deploy {shlex.quote(str(folder))}", f"relight call {call}"):
        print(f"  {line}")
