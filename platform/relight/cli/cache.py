"""``relight cache``: the weights that this node keeps, shared by all functions that run on it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relight.base.errors import BadInput, Conflict, CorruptWeights, NotFound
from relight.base.settings import Settings
from relight.base.units import format_bytes
from relight.cli import exits
from relight.cli.output import Format, note, print_json, print_table

if TYPE_CHECKING:
    from relight.store.cache import Entry, NodeCache

command = typer.Typer(
    help="See, check, empty and fill the cache of models on this node.",
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)

_OUTPUT = typer.Option("-o", "--output", help="How to print.")
_MODELS = "Names, NAME/VERSION, or digests."


@command.command("ls")
def list_entries(output: Annotated[Format, _OUTPUT] = "table") -> None:
    """List what is in the cache, the longest unused first.

    MADE is what was made of a model here, such as an optimised graph; it goes
    with its model. The folder is $RELIGHT_CACHE, by default local mode's; its
    limit is $RELIGHT_CACHE_LIMIT, such as 20Gi.
    """
    cache = open_cache()
    entries = cache.entries()
    if output == "json":
        print_json([_as_json(entry) for entry in entries])
    elif entries:
        print_table(
            ("model", "size", "made", "unused", "state", "digest"),
            [
                (
                    ", ".join(entry.names) or "-",
                    format_bytes(entry.shelved.size),
                    format_bytes(entry.shelved.made),
                    _ago(time.time() - entry.shelved.used),
                    _state(entry),
                    entry.shelved.digest[:12],
                )
                for entry in entries
            ],
        )
    else:
        note(f"nothing in {cache.path}; relight cache prefetch MODEL fetches one")


@command.command()
def verify(
    models: Annotated[list[str] | None, typer.Argument(help=_MODELS, show_default=False)] = None,
    output: Annotated[Format, _OUTPUT] = "table",
) -> int:
    """Read what is in the cache and compare it with its digests.

    What is damaged is removed, unless it is in use. Ends with 1 if anything is.
    """
    from relight.cli.model import _progress

    cache = open_cache()
    rows: list[dict[str, Any]] = []
    for entry in _chosen(cache, models):
        if not entry.shelved.whole:
            continue
        row: dict[str, Any] = {"model": _label(entry), "result": "ok", "reason": ""}
        try:
            with _progress(_label(entry)) as advance:
                cache.verify(entry.shelved.digest, advance)
        except CorruptWeights as error:
            gone = cache.evict(entry.shelved.digest)
            row |= {"result": "removed" if gone else "damaged, in use", "reason": error.message}
        rows.append(row)
    if output == "json":
        print_json(rows)
    elif rows:
        print_table(("model", "result", "reason"), [tuple(row.values()) for row in rows])
    else:
        note(f"nothing in {cache.path}")
    return exits.FAILED if any(row["result"] != "ok" for row in rows) else exits.OK


@command.command()
def evict(
    models: Annotated[list[str] | None, typer.Argument(help=_MODELS, show_default=False)] = None,
    every: Annotated[bool, typer.Option("--all", help="All that is not in use.")] = False,
    output: Annotated[Format, _OUTPUT] = "table",
) -> None:
    """Remove models from the cache. What is in use stays, and is an error if it was named."""
    if bool(models) == every:
        raise BadInput("expected names of models, or --all")
    cache = open_cache()
    evicted: list[Entry] = []
    busy: list[Entry] = []
    for entry in _chosen(cache, models):
        (evicted if cache.evict(entry.shelved.digest) else busy).append(entry)
    if output == "json":
        print_json({"evicted": [_as_json(entry) for entry in evicted], "busy": [_as_json(entry) for entry in busy]})
    else:
        freed = format_bytes(sum(entry.shelved.size + entry.shelved.made for entry in evicted))
        print(f"{len(evicted)} evicted, {freed} free again")
    if busy and not every:
        raise Conflict(f"{', '.join(map(_label, busy))}: in use, and not evicted")


@command.command()
def prefetch(
    models: Annotated[list[str], typer.Argument(help="NAME, or NAME/VERSION.")],
    repository: Annotated[
        str | None,
        typer.Option(
            "--repository",
            metavar="URI",
            help="Model repository; by default $RELIGHT_REPOSITORY, then local mode's.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[Format, _OUTPUT] = "table",
) -> None:
    """Fetch models into the cache before anything needs them.

    The repository is asked what is the latest. Many at once fetch once.

    \b
    relight cache prefetch minilm bert/3
    """
    from relight.cli.model import _progress, open_repository

    source, cache = open_repository(repository), open_cache(revalidate="always")
    wanted = [_parse(model) for model in models]
    rows = []
    for name, version in wanted:
        with _progress(name) as advance, cache.fetch(source, name, version, on_progress=advance) as fetched:
            row = {"model": name, "version": fetched.version, "hit": fetched.hit, "path": str(fetched.path)}
            rows.append(row)
        if output != "json":
            print(f"{name} version {fetched.version} {'was there' if fetched.hit else 'fetched'}", flush=True)
    if output == "json":
        print_json(rows)


def open_cache(revalidate: str = "never") -> NodeCache:
    """The node cache of the environment."""
    from relight.store.cache import NodeCache, limit_from

    settings = Settings.from_environ()
    return NodeCache(settings.cache, limit_from(settings.environ), revalidate=revalidate)


def _chosen(cache: NodeCache, models: list[str] | None) -> list[Entry]:
    entries = cache.entries()
    if not models:
        return entries
    chosen: dict[str, Entry] = {}
    for model in models:
        found = [entry for entry in entries if _is_meant(model, entry)]
        if not found:
            raise NotFound(f"{model!r} is not in the cache {cache.path}")
        chosen |= {entry.shelved.digest: entry for entry in found}
    return list(chosen.values())


def _is_meant(model: str, entry: Entry) -> bool:
    digest = model.removeprefix("sha256:")
    named = any(model in (name, name.rpartition("/")[0]) for name in entry.names)
    return named or (len(digest) >= 8 and entry.shelved.digest.startswith(digest))


def _parse(model: str) -> tuple[str, int | None]:
    name, slash, version = model.partition("/")
    if slash and not (version.isascii() and version.isdecimal()):
        raise BadInput(f"{model!r}: expected NAME or NAME/VERSION")
    return name, int(version) if slash else None


def _label(entry: Entry) -> str:
    return ", ".join(entry.names) or entry.shelved.digest[:12]


def _state(entry: Entry) -> str:
    if entry.shelved.whole:
        return "in use" if entry.shelved.busy else "idle"
    return "fetching" if entry.shelved.busy else "interrupted"


def _as_json(entry: Entry) -> dict[str, Any]:
    item = entry.shelved
    return {
        "models": list(entry.names),
        "digest": f"sha256:{item.digest}",
        "bytes": item.size,
        "made": item.made,
        "used": item.used,
        "state": _state(entry),
    }


def _ago(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"
