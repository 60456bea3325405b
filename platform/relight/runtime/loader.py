"""From a function's code to one that can work: import, fetch, load, warm up; each timed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from relight.base.errors import MissingWeights, RelightError
from relight.runtime.context import FunctionContext, FunctionSettings, unexported
from relight.runtime.function import Function
from relight.runtime.model import Model
from relight.runtime.timeline import Timeline
from relight.store import modelfiles
from relight.store.cache import Fetched, NodeCache
from relight.store.modelfiles import ModelFiles
from relight.store.repository import Repository

log = logging.getLogger("relight.loader")

REVALIDATE_AFTER = 10.0
"""Seconds after which the repository is asked about a version that was used unasked: the first answer, which this start
is about, is given by then, and does not share its processors with an S3 client that is being imported."""


def load(
    source: Callable[[], Function],
    settings: FunctionSettings,
    timeline: Timeline,
    report: Callable[[str, float], None],
    gauge: Callable[[str, str, float], None] = unexported,
) -> Function:
    """Import the function, fetch its weights, load it and warm it up. Whatever these raise is let through."""
    timeline.enter("import")
    function = source()
    timeline.mark("import")
    timeline.enter("fetch")
    fetched, files = _fetch(settings) if function.uses_repository else (None, None)
    function.context = _context(function, settings, fetched, files, report, gauge)
    timeline.mark("fetch")
    timeline.enter("load")
    function.prepare(settings)
    function.load()
    timeline.mark("load")
    timeline.enter("warmup")
    function.warmup()
    timeline.mark("warmup")
    timeline.part("load", function.within_load)
    return function


def _fetch(settings: FunctionSettings) -> tuple[Fetched, ModelFiles]:
    if settings.model is None or settings.repository is None:
        missing = "RELIGHT_MODEL" if settings.model is None else "RELIGHT_REPOSITORY"
        raise MissingWeights(f"this function takes its weights from a model repository, and {missing} is not set")
    begun = time.monotonic()
    folder = settings.cache or Path.home() / ".cache" / "relight"
    cache = NodeCache(folder, settings.cache_limit, revalidate=settings.revalidate)
    repository = Repository.open(settings.repository, settings.keys)
    fetched = cache.fetch(repository, settings.model, settings.model_version)
    # What the cache answered without the repository is to stay so: no call before the first answer.
    files = modelfiles.fetch(repository, settings.model, folder, fresh=fetched.asked)
    if not fetched.settled:
        arguments = (cache, repository, settings.model, settings.model_version, fetched)
        timer = threading.Timer(REVALIDATE_AFTER, _revalidate, arguments)
        timer.daemon = True
        timer.start()
    seconds = time.monotonic() - begun
    log.info(
        "fetch.done model=%s version=%s hit=%s seconds=%.3f", settings.model, fetched.version, fetched.hit, seconds
    )
    return fetched, files


def _revalidate(cache: NodeCache, repository: Repository, model: str, version: int | None, fetched: Fetched) -> None:
    try:
        cache.revalidate(repository, model, version, fetched)
    except (RelightError, OSError) as error:
        log.warning("fetch.not_revalidated model=%s error=%s: what the node knows stays in use", model, error)


def _context(
    function: Function,
    settings: FunctionSettings,
    fetched: Fetched | None,
    files: ModelFiles | None,
    report: Callable[[str, float], None],
    gauge: Callable[[str, str, float], None],
) -> FunctionContext:
    name = settings.name or function.default_name()
    return FunctionContext(
        name=name,
        source=f"/{settings.namespace or 'functions'}/{name}",
        model=settings.model if settings.model and isinstance(function, Model) else name,
        version=str(fetched.version) if fetched else None,
        env=settings.environ,
        files=fetched.path if fetched else None,
        digest=fetched.digest if fetched else None,
        cache=fetched.made if fetched else settings.cache,
        report=report,
        gauge=gauge,
        model_files=files,
        default_max_batch_size=settings.default_max_batch_size,
    )
