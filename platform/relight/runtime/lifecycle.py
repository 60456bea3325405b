"""The life of a function's process, as a table.

::

    created -> loading -> ready ----> draining -> stopped
                  |  \\-> failed --^
                  \\---------------^

Loading is not starting: a process answers its health paths from the first moment, and says by its readiness whether it
can work. A load that fails is final: the reason is kept and told to every caller, and nothing tries again, for the same
code on the same weights fails the same way; a new revision is a new process. Stopping is legal at any time, a load
included: what the load brings later is then refused by the table.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from enum import StrEnum


class State(StrEnum):
    CREATED = "created"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    DRAINING = "draining"
    STOPPED = "stopped"


MOVES: Mapping[State, frozenset[State]] = {
    State.CREATED: frozenset({State.LOADING, State.DRAINING}),
    State.LOADING: frozenset({State.READY, State.FAILED, State.DRAINING}),
    State.READY: frozenset({State.DRAINING}),
    State.FAILED: frozenset({State.DRAINING}),
    State.DRAINING: frozenset({State.STOPPED}),
    State.STOPPED: frozenset(),
}

Listener = Callable[[State, str], None]


class Lifecycle:
    """The state of one function, for all threads. Listeners hear of each move in the thread that made it."""

    def __init__(self) -> None:
        self._state = State.CREATED
        self._reason = ""
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []

    @property
    def state(self) -> State:
        return self._state

    @property
    def reason(self) -> str:
        """Why the last move was made: a sentence, empty where it needs none."""
        return self._reason

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` at every later move; it must be quick and must not raise."""
        with self._lock:
            self._listeners.append(listener)

    def move(self, to: State, reason: str = "") -> bool:
        """Go to another state. False, and nothing changes, where the table has no such move from here."""
        with self._lock:
            if to not in MOVES[self._state]:
                return False
            self._state, self._reason = to, reason
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener(to, reason)
        return True
