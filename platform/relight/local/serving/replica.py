"""One replica's life: its states, why it ended, and how long its revision waits before the next one is started.

A replica's life is a table of legal moves::

    starting -> ready -> draining -> gone
        |         |                   ^
        |         +---- crashed ------+
        +---- failed, retired --------+
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from relight.local.serving.launching import Launched, Ready
from relight.local.serving.machine import Grant
from relight.local.serving.types import RevisionSpec

FIRST_DELAY = 10.0
LAST_DELAY = 300.0
CRASH_DELAY = 0.5
"""Seconds before the second replacement in a row of a replica that was ready; requests are held for it."""
SETTLED = 60.0
"""Seconds that a replica must have been ready for earlier failures to be forgotten."""


class State(enum.Enum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"


class Reason(enum.Enum):
    """Why a replica ended."""

    SCALED_DOWN = "ScaledDown"
    """It was not wanted any more."""
    LOAD_FAILED = "LoadFailed"
    """It could not boot: its own words, or how its process ended before it was ready."""
    OUT_OF_MEMORY = "OOMKilled"
    """It needed more memory than its limit, or than the machine had."""
    CRASHED = "Crashed"
    """Its process ended by itself."""
    UNREACHABLE = "Unreachable"
    """It took no connections though its process ran."""
    UNHEALTHY = "Unhealthy"
    """Its liveness probe failed too often."""
    EVICTED = "Evicted"
    """Its Pod was deleted."""
    GAVE_WAY = "GaveWay"
    """A newer revision needed its room."""
    TOO_SLOW = "ProgressDeadlineExceeded"
    SHUT_DOWN = "ShutDown"
    """The platform stops, or its revision is gone."""


_MOVES = {
    State.STARTING: {State.READY, State.DRAINING, State.GONE},
    State.READY: {State.DRAINING, State.GONE},
    State.DRAINING: {State.GONE},
    State.GONE: set[State](),
}


@dataclass
class Replica:
    """One process of a revision."""

    pod: str
    state: State = State.STARTING
    launched: Launched | None = None
    ready: Ready | None = None
    reason: Reason | None = None
    message: str = ""
    grant: Grant | None = None
    passing: bool = True
    """Its readiness probe, where it has one, succeeds."""

    @property
    def serves(self) -> bool:
        return self.state is State.READY and self.passing

    def move(self, state: State) -> None:
        if state not in _MOVES[self.state]:
            raise AssertionError(f"replica {self.pod}: {self.state.value} -> {state.value} is no legal move")
        self.state = state


@dataclass(frozen=True)
class Failure:
    """The latest failed start or crash."""

    reason: Reason
    message: str
    in_a_row: int
    retry_at: float
    """Monotonic time before which no replica is started."""


class Observer(Protocol):
    """Told of each replica's moves; shows them as Pod objects and records cold starts."""

    def replica_moved(self, spec: RevisionSpec, replica: Replica) -> None: ...


def failed(
    before: Failure | None, reason: Reason, message: str, *, was_ready: bool, lasted: float, now: float
) -> Failure:
    """The failure to remember, and when to try again. ``lasted``: seconds that the replica was ready.

    A start that failed is tried again after 10 s, then after a delay that doubles up to 300 s (the kubelet's). One that
    was ready has shown that it can start: it is replaced at once, and if that repeats, after half a second that doubles
    likewise; a function that dies of every request ends up where one that cannot start is.
    """
    earlier = before.in_a_row if before and lasted < SETTLED else 0
    delay = FIRST_DELAY * 2.0**earlier
    if was_ready:
        delay = CRASH_DELAY * 2.0 ** (earlier - 1) if earlier else 0.0
    delay = min(LAST_DELAY, delay)
    return Failure(reason, message, earlier + 1, now + delay)


_NO_MEMORY = ("MemoryError", "std::bad_alloc", "Cannot allocate memory", "CUDA out of memory")
"""What a process says at its end when an allocation failed."""


def why(said: str, tail: bytes, *, was_ready: bool, counted: bool) -> tuple[Reason, str]:
    """Why a process ended that nobody had asked to, and the sentence for it.

    ``said``: what is known so far, such as ``killed by SIGKILL``; ``tail``: the end of its log; ``counted``: the kernel
    says that it ended a process there because of the memory limit.
    """
    if counted:
        return Reason.OUT_OF_MEMORY, f"out of memory, it needed more than its limit: {said}"
    last = b"\n".join(tail.splitlines()[-2:]).decode(errors="replace")
    if any(word in said or word in last for word in _NO_MEMORY):
        return Reason.OUT_OF_MEMORY, f"out of memory, an allocation failed: {said}"
    return Reason.CRASHED if was_ready else Reason.LOAD_FAILED, said
