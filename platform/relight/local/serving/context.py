"""What the connections of one router share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from relight.base.tasks import Tasks
from relight.local.serving.activator import Gates
from relight.local.serving.deadlines import Deadlines
from relight.local.serving.http1 import SMALL
from relight.local.serving.metrics import RouterMetrics
from relight.local.serving.routes import Routes
from relight.local.serving.types import RevisionKey
from relight.wire.http import Response

if TYPE_CHECKING:
    from relight.local.serving.h2replicas import ReplicaLinks
    from relight.local.serving.upstream import Pools


@dataclass(frozen=True)
class RouterSettings:
    """Limits of the router's connections. Times in seconds, sizes in bytes."""

    head_bytes: int = SMALL
    """Largest head of a request; more is answered 431."""
    body_bytes: int = SMALL
    """What is kept of a request's body before it is sent on; larger bodies wait in the client."""
    head_timeout: float = 10.0
    """From the first byte of a head to its last; later is answered 408."""
    keep_alive: float = 75.0
    """An idle connection of a client is closed after this (nginx's default)."""
    pool_idle: float = 30.0
    """An idle connection to a replica is closed after this."""
    linger: float = 2.0
    """How long what a client still sends is read and dropped after its connection's last answer, so that it can read
    that answer before it learns that the rest was not wanted."""


class Connection(Protocol):
    """A client's connection, as the router ends it."""

    @property
    def busy(self) -> bool:
        """Whether a request is not answered yet."""
        ...

    def stop(self) -> None:
        """The router stops: close at once when idle, else after the answers."""
        ...

    def vanish_now(self) -> None:
        """The router has no more patience."""
        ...

    def buffered(self) -> int:
        """Bytes kept for this client, both ways."""
        ...


@dataclass
class Context:
    """Made by the router, read by its connections."""

    routes: Routes
    gates: Gates
    settings: RouterSettings
    metrics: RouterMetrics
    deadlines: Deadlines
    pools: Pools
    links: ReplicaLinks
    tasks: Tasks
    clock: Callable[[], float]
    pages: Mapping[bytes, Callable[[], Response]]
    """What the router itself answers, by path; functions have two segments at least."""
    on_replica_error: Callable[[RevisionKey, str], None]
    on_first_answer: Callable[[RevisionKey, str, float], Mapping[str, float]]
    """Told of a woken revision's first answer, with its replica and the seconds since it was woken; says the phases of
    these, or nothing where no request waited for all of the start."""
    connections: set[Connection] = field(default_factory=set)
    draining: bool = False
    """The router stops: every answer is the last one of its connection."""
    all_closed: asyncio.Event | None = None
    """Set, where somebody waits for it, when the last client's connection is closed."""
    random01: Callable[[], float] = random.random
    random_bits: Callable[[int], int] = random.getrandbits
