"""An answer that is still being made: a future, and how its result becomes a response."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from relight.wire.http import Response


@dataclass(frozen=True, slots=True)
class Waiting:
    """What an endpoint returns that has handed work to a thread; ``finish`` may raise as the endpoint may."""

    future: Future[Any]
    finish: Callable[[Any], Response]


@dataclass(frozen=True, slots=True)
class Pending:
    """What a host gets: it waits for ``future`` in its own way, then calls exactly one of the two."""

    future: Future[Any]
    respond: Callable[[], Response]
    """The response, once the future is done. Never raises."""
    abandon: Callable[[], None]
    """The caller hung up: what has not begun is not run, and what has is not answered."""
