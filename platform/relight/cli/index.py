"""``relight index``: the vector index of a collection: which one it should have, and which it has."""

from __future__ import annotations

import os
import textwrap
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from relight.base.errors import BadInput, NotFound
from relight.base.settings import Settings
from relight.base.units import format_bytes, parse_quantity
from relight.cli.output import Format, print_json, print_table, waiting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from relight.decide.indexing import IndexPlan
    from relight.retrieval.vectors import Standing, VectorStore

command = typer.Typer(
    help="Plan, build, rebuild and see a collection's vector index.",
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)

_COLLECTION = typer.Argument(help="The collection.")
_STORE = typer.Option(
    "--store",
    metavar="URL",
    help="Vector store; by default $VECTOR_STORE, $MILVUS_URI, then local mode's.",
    show_default=False,
)
_OUTPUT = typer.Option("-o", "--output", help="How to print.")
_MEMORY = typer.Option(help="For the index, such as 4Gi; by default half of this machine's.", show_default=False)
_RECALL = typer.Option(min=0.5, max=1.0, help="The share of the true nearest to be found.")
_GROWTH = typer.Option(min=1.0, help="What the rows will be multiplied by.")


@command.command()
def plan(
    collection: Annotated[str, _COLLECTION] = "documents",
    rows: Annotated[int | None, typer.Option(min=1, help="As if it had so many.", show_default=False)] = None,
    dimension: Annotated[int | None, typer.Option(min=1, help="As if it had so many.", show_default=False)] = None,
    memory: Annotated[str | None, _MEMORY] = None,
    recall: Annotated[float, _RECALL] = 0.95,
    growth: Annotated[float, _GROWTH] = 1.5,
    store: Annotated[str | None, _STORE] = None,
    output: Annotated[Format, _OUTPUT] = "table",
) -> None:
    """Say which index fits, with its parameters and why. Changes nothing.

    With --rows and --dimension no store is asked.

    \b
    relight index plan
    relight index plan --rows 5000000 --dimension 768 --memory 8Gi
    """
    if rows is not None and dimension is not None:
        chosen = _choose(rows, dimension, memory, recall, growth, None)
    else:
        with _opened(collection, store) as opened:
            standing = _standing(opened, collection)
            size, wide = rows or standing.rows, dimension or standing.space.dimension
            chosen = _choose(size, wide, memory, recall, growth, opened.kinds())
    _print_plan(chosen, output)


@command.command()
def build(
    collection: Annotated[str, _COLLECTION] = "documents",
    kind: Annotated[str | None, typer.Option(help="This kind, not the planned one.", show_default=False)] = None,
    memory: Annotated[str | None, _MEMORY] = None,
    recall: Annotated[float, _RECALL] = 0.95,
    growth: Annotated[float, _GROWTH] = 1.5,
    store: Annotated[str | None, _STORE] = None,
    output: Annotated[Format, _OUTPUT] = "table",
) -> None:
    """Build the index that fits, if the collection does not have it.

    It is built beside the one at work, which answers until the new one does.
    """
    _build(collection, kind, memory, recall, growth, store, output, always=False)


@command.command()
def rebuild(
    collection: Annotated[str, _COLLECTION] = "documents",
    kind: Annotated[str | None, typer.Option(help="This kind, not the planned one.", show_default=False)] = None,
    memory: Annotated[str | None, _MEMORY] = None,
    recall: Annotated[float, _RECALL] = 0.95,
    growth: Annotated[float, _GROWTH] = 1.5,
    store: Annotated[str | None, _STORE] = None,
    output: Annotated[Format, _OUTPUT] = "table",
) -> None:
    """Build the index anew, even if it has the kind that fits.

    For one whose recall has fallen. It is built beside the one at work.
    """
    _build(collection, kind, memory, recall, growth, store, output, always=True)


@command.command()
def status(
    collection: Annotated[str, _COLLECTION] = "documents",
    recall: Annotated[bool, typer.Option("--recall", help="Measure it, by a scan of all vectors.")] = False,
    store: Annotated[str | None, _STORE] = None,
    output: Annotated[Format, _OUTPUT] = "table",
) -> None:
    """Show a collection's index, rows and model, and what would fit."""
    from relight.retrieval.quality import SAMPLE, measure_recall

    with _opened(collection, store) as opened:
        standing = _standing(opened, collection)
        fits = _choose(standing.rows, standing.space.dimension, None, 0.95, 1.5, opened.kinds())
        measured = None
        if recall:
            batch = next(opened.scan(SAMPLE), [])
            measured = measure_recall(opened, [(row.tenant, row.vector) for row in batch])
    told = {
        "collection": standing.collection,
        "rows": standing.rows,
        "dimension": standing.space.dimension,
        "model": standing.space.model or "unknown",
        "metric": standing.space.metric,
        "index": standing.index,
        "params": dict(standing.params),
        "fits": fits.kind,
    }
    if measured is not None:
        told["recall@10"] = round(measured.value, 4)
    if output == "json":
        print_json(told)
        return
    heads = [name for name in told if name != "params"]
    print_table(heads, [[told[name] for name in heads]])
    if fits.kind != standing.index:
        print(f"\n{_wrapped(f'{fits.kind} fits better: {fits.reason}')}")
        print(f"relight index build {collection}   builds it")


def _build(
    collection: str,
    kind: str | None,
    memory: str | None,
    recall: float,
    growth: float,
    store: str | None,
    output: Format,
    *,
    always: bool,
) -> None:
    with _opened(collection, store) as opened:
        standing = _standing(opened, collection)
        kinds = opened.kinds()
        if kind is not None:
            if kind not in kinds:
                raise BadInput(f"--kind: this store builds {', '.join(kinds)}, and not {kind}")
            kinds = (kind,)
        chosen = _choose(standing.rows, standing.space.dimension, memory, recall, growth, kinds)
        if chosen.kind == standing.index and not always:
            print(_wrapped(f"{collection} has {standing.index} already: {chosen.reason}"))
            return
        begun = time.monotonic()
        with waiting(f"building {chosen.kind} over {standing.rows:,} rows"):
            opened.rebuild(chosen)
        took = time.monotonic() - begun
        after = _standing(opened, collection)
    if output == "json":
        seconds = round(took, 2)
        print_json({"collection": after.collection, "index": after.index, "rows": after.rows, "seconds": seconds})
    else:
        print(f"{collection}: {standing.index} → {after.index} over {after.rows:,} rows in {took:.1f} s")
        if kind is None:
            print(_wrapped(f"because {chosen.reason}"))


def _choose(
    rows: int, dimension: int, memory: str | None, recall: float, growth: float, kinds: tuple[str, ...] | None
) -> IndexPlan:
    from relight.decide.indexing import KINDS, choose_index

    try:
        room = int(parse_quantity(memory)) if memory else _half_of_memory()
    except ValueError as error:
        raise BadInput(f"--memory: {error}") from None
    return choose_index(rows, dimension, memory=room, recall=recall, growth=growth, kinds=kinds or KINDS)


def _half_of_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _print_plan(chosen: IndexPlan, output: Format) -> None:
    if output == "json":
        print_json(vars(chosen))
        return
    print_table(
        ("index", "memory", "build", "search"),
        [(chosen.kind, format_bytes(chosen.bytes), _listed(chosen.build), _listed(chosen.search))],
    )
    print(f"\n{_wrapped(chosen.reason)}")


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 80)


def _listed(params: object) -> str:
    return ", ".join(f"{name}={value}" for name, value in dict(params).items()) or "-"  # type: ignore[call-overload]


def _standing(store: VectorStore, collection: str) -> Standing:
    found = store.standing()
    if found is None:
        raise NotFound(f"there is no collection {collection!r} in this store: index something first")
    return found


@contextmanager
def _opened(collection: str, url: str | None) -> Iterator[VectorStore]:
    from relight.retrieval.stores import open_store

    # A rebuild's statements take as long as they take: the store itself ends those that hang.
    store = open_store(url or _default_store(), collection, timeout=600.0)
    try:
        yield store
    finally:
        store.close()


def _default_store() -> str:
    """Of the environment; else Milvus Lite as local mode has it on this home."""
    import json

    settings = Settings.from_environ()
    named = settings.environ.get("VECTOR_STORE") or settings.environ.get("MILVUS_URI")
    if named:
        return named
    recorded = settings.home.path / "services" / "milvus" / "server.json"
    try:
        return f"http://127.0.0.1:{int(json.loads(recorded.read_text())['port'])}"
    except (OSError, ValueError, KeyError, TypeError):
        raise NotFound(
            "no vector store: VECTOR_STORE is not set, and local mode on this machine has started none yet; "
            "pass --store URL"
        ) from None
