"""Values that the parts of serving share: who a revision is, what it needs, where its traffic goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from relight.decide.slots import Limits
from relight.local.serving.probes import Probes


class RevisionKey(NamedTuple):
    """A revision's identity in local mode."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Address(NamedTuple):
    """Where a ready replica listens (always loopback)."""

    host: str
    port: int


@dataclass(frozen=True)
class RevisionLimits:
    """What the data path must hold a revision's requests to. Times in seconds."""

    container_concurrency: int = 0
    """Requests at once per replica; 0: no limit."""
    timeout: float = 300.0
    """From the request's arrival to the end of the answer, the wait for a cold replica included (Knative's rule)."""
    response_start: float = 300.0
    """From the request's arrival to the first byte of the answer."""
    idle: float = 0.0
    """Between two bytes of an answer; 0: no limit."""
    h2c: bool = False
    """Its replicas speak HTTP/2 with prior knowledge, and nothing else: the container's port is named ``h2c``."""


@dataclass(frozen=True)
class RouteTarget:
    """One line of a route's traffic. ``percent`` of all targets of a route add up to 100; a tag has its own URL."""

    revision: RevisionKey
    percent: int
    tag: str | None = None


@dataclass(frozen=True)
class RevisionSpec:
    """What it takes to start a replica of a revision: filled from the Revision object by its controller."""

    key: RevisionKey
    uid: str
    service: str
    configuration: str
    source: str
    """Folder of the function (a copy that belongs to the revision's digest)."""
    env: dict[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    """Modules that the zygote for this revision has imported before it forks."""
    backing: tuple[str, ...] = ()
    """Backing services to have ready before a replica starts, such as ``milvus``."""
    limits: RevisionLimits = field(default_factory=RevisionLimits)
    grace: float = 300.0
    """Seconds from SIGTERM to SIGKILL (Knative: the revision's timeout)."""
    progress_deadline: float = 600.0
    """Seconds that a replica may take to become ready."""
    need: Mapping[str, int] = field(default_factory=dict)
    """Room that one replica takes on the machine, by resource (see ``decide.slots``)."""
    use: Limits = field(default_factory=Limits)
    """What one replica may use at most."""
    strategy: str = "surge"
    """How it takes over from its predecessor on a full machine: ``surge`` or ``recreate``."""
    probes: Probes = field(default_factory=Probes)
