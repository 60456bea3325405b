"""``relight model pull``, ``verify``, ``rm`` and ``gc``: what can be done with versions that are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from relight.base.errors import BadInput, CorruptWeights, Forbidden, MissingWeights
from relight.base.units import format_bytes, parse_duration
from relight.cli import exits
from relight.cli.output import Format, note, print_json, print_table

_NAME = typer.Argument(help="The model's name.")
_REPOSITORY = typer.Option(
    "--repository",
    metavar="URI",
    help="Model repository; by default $RELIGHT_REPOSITORY, then local mode's.",
    show_default=False,
)
_OUTPUT = typer.Option("-o", "--output", help="How to print.")
_VERSION = typer.Option("--version", metavar="N", help="The latest if not given.", show_default=False)


def add(command: typer.Typer) -> None:
    """Add these commands to ``relight model``."""
    for function, name in ((pull, "pull"), (verify, "verify"), (rm, "rm"), (gc, "gc")):
        command.command(name)(function)


def pull(
    name: Annotated[str, _NAME],
    target: Annotated[Path, typer.Argument(help="A folder that does not exist yet, or is empty.")],
    version: Annotated[int | None, _VERSION] = None,
    repository: Annotated[str | None, _REPOSITORY] = None,
    output: Annotated[Format, _OUTPUT] = "table",
) -> None:
    """Fetch a version of a model into a folder.

    Every byte is checked. If it is interrupted, the same command goes on.

    \b
    relight model pull minilm ./minilm --version 3
    """
    from relight.cli.model import _progress, locate
    from relight.store.pulling import pull as fetch

    source, name = locate(name, repository)
    found = source.resolve(name, version)
    with _progress(f"{name} → {target}") as advance:
        fetch(source, found, target, advance)
    size = found.manifest.size
    if output == "json":
        print_json({"model": name, "version": found.number, "path": str(target.resolve()), "bytes": size})
    else:
        print(f"{name} version {found.number} ({format_bytes(size)}) pulled into {target}")


def verify(
    name: Annotated[str | None, typer.Argument(help="All models if not given.", show_default=False)] = None,
    version: Annotated[
        int | None, typer.Option("--version", metavar="N", help="All if not given.", show_default=False)
    ] = None,
    repository: Annotated[str | None, _REPOSITORY] = None,
    output: Annotated[Format, _OUTPUT] = "table",
) -> int:
    """Read what is stored and compare it with its digests.

    Encrypted versions are checked as they are stored, without the key. Ends
    with 1 if anything is damaged.
    """
    from relight.cli.model import _progress, locate
    from relight.store.transfer import check

    if version is not None and name is None:
        raise BadInput("expected the name of a model with --version")
    source, name = locate(name or "", repository)
    rows: list[dict[str, Any]] = []
    for model in [name] if name else source.models():
        if version is None and not source.versions(model):
            source.latest(model)  # raises, and says what there is instead
        for number in [version] if version is not None else source.versions(model):
            row: dict[str, Any] = {"model": model, "version": number, "result": "ok", "reason": ""}
            try:
                found = source.resolve(model, number)
                if found.manifest.is_checked:
                    with _progress(f"{model}/{number}") as advance:
                        check(source.stored(found), advance)
                else:
                    row |= {"result": "unchecked", "reason": "it was not pushed by relight, and has no digests"}
            except (CorruptWeights, MissingWeights, Forbidden) as error:
                row |= {"result": "damaged", "reason": error.message}
            rows.append(row)
    if output == "json":
        print_json(rows)
    elif rows:
        print_table(("model", "version", "result", "reason"), [tuple(row.values()) for row in rows])
    else:
        note(f"no models in {source.uri}")
    return exits.FAILED if any(row["result"] == "damaged" for row in rows) else exits.OK


def rm(
    name: Annotated[str, _NAME],
    version: Annotated[
        list[int] | None, typer.Option("--version", metavar="N", help="Which; may be repeated.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="The whole model.")] = False,
    repository: Annotated[str | None, _REPOSITORY] = None,
    output: Annotated[Format, _OUTPUT] = "table",
) -> None:
    """Remove versions of a model from the repository.

    Their numbers are not used again. What runs on them runs on, for every node
    has its own copy.
    """
    from relight.cli.model import locate

    if bool(version) == every:
        raise BadInput("expected --version N, or --all for the whole model")
    target, name = locate(name, repository)
    found = target.versions(name)
    if not found:
        target.latest(name)  # raises, and says what there is instead
    chosen = found if every else sorted(set(version or ()))
    for number in chosen:
        target.remove(name, number)
    if output == "json":
        print_json({"model": name, "removed": chosen, "repository": target.uri})
    else:
        print(f"{name} version{'s' if len(chosen) > 1 else ''} {', '.join(map(str, chosen))} removed")


def gc(
    name: Annotated[str | None, typer.Argument(help="All models if not given.", show_default=False)] = None,
    keep: Annotated[
        int | None,
        typer.Option("--keep", metavar="N", min=1, help="Remove all but the N latest versions.", show_default=False),
    ] = None,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="DURATION", help="For uploads that nobody finished.")
    ] = "24h",
    repository: Annotated[str | None, _REPOSITORY] = None,
    output: Annotated[Format, _OUTPUT] = "table",
) -> None:
    """Remove what interrupted pushes left, and old versions if asked to.

    Pushes that are going on are left alone.
    """
    from relight.cli.model import locate
    from relight.store.repository import check_name

    try:
        age = parse_duration(older_than)
    except ValueError as error:
        raise BadInput(f"--older-than: {error}") from None
    target, name = locate(name or "", repository)
    models = [check_name(name)] if name else target.folders()
    left = sum(target.sweep(model) for model in models) + target.objects.clean(age)
    removed = []
    for model in models if keep else ():
        for number in target.versions(model)[: -(keep or 1)]:
            target.remove(model, number)
            removed.append({"model": model, "version": number})
    if output == "json":
        print_json({"leftovers": left, "removed": removed, "repository": target.uri})
    else:
        print(f"{left} leftover objects and {len(removed)} versions removed from {target.uri}")
