"""What a function's process is told, read once from its environment, and what it tells the function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from relight.base.errors import BadInput, Problem

MAX_BODY = 64 * 2**20
"""Bytes of one request's body; a batch of large images fits, a forgotten upload does not."""
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
    """What is asked of the repository although it is known on this node; ``relight.store.cache`` says what there is."""
    max_body: int = MAX_BODY
    queue_limit: int = QUEUE_LIMIT
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

        protocol = environ.get("RELIGHT_PROTOCOL") or "http"
        if protocol not in ("http", "grpc"):
            problems.append(Problem("RELIGHT_PROTOCOL", f"expected http or grpc, got {protocol!r}"))
        settings = cls(
            name=environ.get("K_SERVICE") or None,
            namespace=environ.get("RELIGHT_NAMESPACE") or None,
            model=environ.get("RELIGHT_MODEL") or None,
            model_version=number("RELIGHT_MODEL_VERSION", None),
            repository=environ.get("RELIGHT_REPOSITORY") or None,
            cache=Path(environ["RELIGHT_CACHE"]) if environ.get("RELIGHT_CACHE") else None,
            revalidate=environ.get("RELIGHT_REVALIDATE") or "background",
            max_body=number("RELIGHT_MAX_BODY_BYTES", MAX_BODY) or MAX_BODY,
            queue_limit=number("RELIGHT_QUEUE_LIMIT", QUEUE_LIMIT) or QUEUE_LIMIT,
            protocol=protocol,
            environ=dict(environ),
        )
        if problems:
            raise BadInput.of(problems)
        return settings


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
    """A folder of this node for what can be made again, such as optimised graphs."""
    report: Callable[[str, float], None]
    """Tell a part of the load by name and seconds: it is logged and exported beside the phases."""
