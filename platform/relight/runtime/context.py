"""What a function's process is told, read once from its environment, and what it tells the function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from relight.base.errors import BadInput, Problem
from relight.base.units import parse_quantity
from relight.store.cache import limit_from
from relight.store.keys import Keys
from relight.store.modelfiles import ModelFiles
from relight.wire.modelconfig import DEFAULT_MAX_BATCH_SIZE

MAX_BODY = 64 * 2**20
"""Bytes of one request's body; a batch of large images fits, a forgotten upload does not."""
LOAD_WAIT = 60.0
"""Seconds that a request waits for its model to be fetched and loaded: a large one from object storage fits."""
DEDUP_TTL = 3600
"""Seconds; longer than Knative's ten retries (0.2 s doubling: 205 s in all) and a cold start or two."""
FORWARD_SECONDS = 30.0
"""Half of Knative's window, for which a replica stays after the last request."""
QUEUE_LIMIT = 256
"""Requests that wait in one process; more are refused with Retry-After. Two seconds of work at 8 ms each."""


@dataclass(frozen=True)
class FunctionSettings:
    """The environment of one function, checked. ``name`` is None where nothing names it: its class does then."""

    name: str | None = None
    namespace: str | None = None
    model: str | None = None
    model_version: int | None = None
    """None: the latest of the repository."""
    repository: str | None = None
    cache: Path | None = None
    revalidate: str = "background"
    """When the repository is asked about what is known on this node; ``relight.store.cache`` says what there is."""
    cache_limit: int | None = None
    """Bytes that the node cache may take; None: as much as the disk has."""
    keys: Keys = field(default_factory=Keys)
    """For weights that are stored encrypted."""
    dedup_ttl: int = DEDUP_TTL
    """Seconds that an event's answer is kept for whoever sends the event again."""
    dedup_redis: str | None = None
    """URL of a Redis in which the replicas share those answers; None: each replica knows its own."""
    max_body: int = MAX_BODY
    queue_limit: int = QUEUE_LIMIT
    default_max_batch_size: int = DEFAULT_MAX_BATCH_SIZE
    """Rows of a batch for models that can batch and whose configuration says nothing."""
    memory_budget: int = 0
    """Bytes that the repository's models in this process may take together; 0: no budget."""
    repository_poll: float = 0.0
    """Seconds between two looks for changes in the repository; 0: it is not watched."""
    load_wait: float = LOAD_WAIT
    """Seconds that a request waits for its model to be loaded."""
    own_functions: Mapping[str, str] = field(default_factory=dict)
    """URLs of the functions that models of the front door have for themselves; empty: all are answered there."""
    forward_seconds: float = FORWARD_SECONDS
    """Seconds that such a function counts as running after it has answered."""
    protocol: str = "http"
    """What is spoken on the port: ``http``, or ``grpc``, for Knative gives a function one port."""
    environ: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> FunctionSettings:
        """Read what the platform and the user set; BadInput names every variable that is wrong."""
        problems: list[Problem] = []

        def number(name: str, default: int | None) -> int | None:
            raw = environ.get(name, "")
            if not raw:
                return default
            if not (raw.isascii() and raw.isdecimal() and int(raw) > 0):
                problems.append(Problem(name, f"expected a whole number above 0, got {raw!r}"))
                return default
            return int(raw)

        def seconds(name: str, default: float) -> float:
            raw = environ.get(name, "")
            try:
                value = float(raw) if raw else default
            except ValueError:
                value = -1.0
            if not 0 <= value < 1e9:
                problems.append(Problem(name, f"expected a number of seconds from 0, got {raw!r}"))
            return value

        def size(name: str) -> int:
            try:
                value = parse_quantity(environ.get(name) or "0")
            except ValueError as error:
                problems.append(Problem(name, str(error)))
                return 0
            if value < 0:
                problems.append(Problem(name, f"expected bytes from 0, got {environ[name]!r}"))
            return int(value)

        def keys() -> Keys:
            try:
                return Keys.from_environ(environ)
            except BadInput as error:
                problems.append(Problem("", error.message))
                return Keys()

        def limit() -> int | None:
            try:
                return limit_from(environ)
            except BadInput as error:
                problems.append(Problem("", error.message))
                return None

        def own_functions() -> dict[str, str]:
            try:
                return _own_functions(environ.get("RELIGHT_OWN_FUNCTIONS", ""))
            except ValueError as error:
                problems.append(Problem("RELIGHT_OWN_FUNCTIONS", str(error)))
                return {}

        protocol = environ.get("RELIGHT_PROTOCOL") or "http"
        if protocol not in ("http", "grpc"):
            problems.append(Problem("RELIGHT_PROTOCOL", f"expected http or grpc, got {protocol!r}"))
        elif protocol == "grpc" and find_spec("grpc") is None:
            problems.append(Problem("RELIGHT_PROTOCOL", "grpc needs grpcio; install relight[grpc]"))
        settings = cls(
            name=environ.get("K_SERVICE") or None,
            namespace=environ.get("RELIGHT_NAMESPACE") or None,
            model=environ.get("RELIGHT_MODEL") or None,
            model_version=number("RELIGHT_MODEL_VERSION", None),
            repository=environ.get("RELIGHT_REPOSITORY") or None,
            cache=Path(environ["RELIGHT_CACHE"]) if environ.get("RELIGHT_CACHE") else None,
            revalidate=environ.get("RELIGHT_REVALIDATE") or "background",
            cache_limit=limit(),
            keys=keys(),
            dedup_ttl=number("RELIGHT_DEDUP_SECONDS", DEDUP_TTL) or DEDUP_TTL,
            dedup_redis=environ.get("RELIGHT_DEDUP_REDIS") or None,
            max_body=number("RELIGHT_MAX_BODY_BYTES", MAX_BODY) or MAX_BODY,
            queue_limit=number("RELIGHT_QUEUE_LIMIT", QUEUE_LIMIT) or QUEUE_LIMIT,
            default_max_batch_size=number("RELIGHT_DEFAULT_MAX_BATCH_SIZE", None) or DEFAULT_MAX_BATCH_SIZE,
            memory_budget=size("RELIGHT_MEMORY_BUDGET"),
            repository_poll=seconds("RELIGHT_REPOSITORY_POLL", 0.0),
            load_wait=seconds("RELIGHT_LOAD_WAIT", LOAD_WAIT),
            own_functions=own_functions(),
            forward_seconds=seconds("RELIGHT_FORWARD_SECONDS", FORWARD_SECONDS),
            protocol=protocol,
            environ=dict(environ),
        )
        if problems:
            raise BadInput.of(problems)
        return settings


def unexported(name: str, help_text: str, value: float) -> None:
    """A gauge where nobody reads metrics."""


@dataclass(frozen=True)
class FunctionContext:
    """What a function may know about where it runs; set as ``self.context`` before its ``load``."""

    name: str
    source: str
    """The source of the events that it sends: ``/NAMESPACE/NAME``."""
    model: str
    version: str | None
    """Of the model in the repository; None where it has none."""
    env: Mapping[str, str]
    files: Path | None
    """The folder of the model's version, read-only and shared by all replicas of the node; None without repository."""
    digest: str | None
    """Of these files: the same digest is the same content."""
    cache: Path | None
    """A folder of this node for what can be made again, such as optimised graphs. That of a model's version goes with
    its files when the node cache makes room."""
    report: Callable[[str, float], None]
    """Tell a part of the load by name and seconds: it is logged and exported beside the phases."""
    model_files: ModelFiles | None = None
    """What the repository has of the model beside its versions, such as its configuration."""
    default_max_batch_size: int = DEFAULT_MAX_BATCH_SIZE
    """Rows of a batch for a model that can batch and has no configuration."""
    gauge: Callable[[str, str, float], None] = unexported
    """Export a figure of the function's own at ``/metrics``: its name, what it says, its value now."""


def _own_functions(text: str) -> dict[str, str]:
    """``MODEL=URL`` with white space between, as the setting has it; ValueError says what was expected."""
    found = {}
    for word in text.split():
        model, _, url = word.partition("=")
        parts = urlsplit(url)
        if not model or parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"expected MODEL=URL such as bert=http://bert.default.svc.cluster.local, got {word!r}")
        found[model] = url
    return found
