"""Calls of Milvus Lite in turn: it is safe for one writer only."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from relight.local.milvus import InTurn

BLOCKED = 0.1
"""Seconds after which a call that has not begun counts as waiting."""
WAIT = 10.0


class Held:
    """A servicer whose calls say that they have begun, and last until they are let go."""

    def __init__(self) -> None:
        self.fails = False

    def __getattr__(self, name: str) -> Any:
        def call(request: tuple[threading.Event, threading.Event], context: Any) -> str:
            begun, go = request
            begun.set()
            assert go.wait(WAIT)
            if self.fails:
                raise RuntimeError(name)
            return name

        return call


class Calls:
    """Calls in threads of their own."""

    def __init__(self) -> None:
        self.held = Held()
        self.turns = InTurn(self.held)
        self._going: list[tuple[threading.Thread, threading.Event]] = []

    def begin(self, name: str) -> tuple[threading.Event, threading.Event]:
        """(begun, go) of a call."""
        begun, go = threading.Event(), threading.Event()

        def run() -> None:
            try:
                assert getattr(self.turns, name)((begun, go), None) == name
            except RuntimeError:
                assert self.held.fails

        thread = threading.Thread(target=run)
        thread.start()
        self._going.append((thread, go))
        return begun, go

    def end(self) -> None:
        for _, go in self._going:
            go.set()
        for thread, _ in self._going:
            thread.join(WAIT)
            assert not thread.is_alive()


@contextmanager
def calls() -> Iterator[Calls]:
    some = Calls()
    try:
        yield some
    finally:
        some.end()


@pytest.mark.parametrize(
    ("going", "other", "waits"),
    [
        ("Search", "Query", False),
        ("Search", "Insert", False),
        ("Insert", "Search", False),
        ("Insert", "Upsert", True),
        ("Delete", "Insert", True),
        ("Insert", "Flush", True),
        ("Flush", "Insert", True),
        ("Flush", "Flush", True),
        ("Search", "Flush", True),
        ("Flush", "Search", True),
        ("Query", "DropCollection", True),
        ("AlterAlias", "HybridSearch", True),
    ],
)
def test_who_waits_for_whom(going: str, other: str, waits: bool) -> None:
    with calls() as some:
        begun, go = some.begin(going)
        assert begun.wait(WAIT)
        then, _ = some.begin(other)
        assert then.wait(BLOCKED if waits else WAIT) is not waits
        go.set()
        assert then.wait(WAIT)


def test_readers_that_follow_each_other_do_not_keep_a_flush_out() -> None:
    with calls() as some:
        first, go_first = some.begin("Search")
        assert first.wait(WAIT)
        flush, go_flush = some.begin("Flush")
        assert not flush.wait(BLOCKED)
        second, _ = some.begin("Search")
        assert not second.wait(BLOCKED)
        go_first.set()
        assert flush.wait(WAIT)
        go_flush.set()
        assert second.wait(WAIT)


def test_a_call_that_fails_lets_the_next_one_in() -> None:
    with calls() as some:
        some.held.fails = True
        for name in ("Flush", "Insert", "Search", "Flush", "Search"):
            begun, go = some.begin(name)
            assert begun.wait(WAIT)
            go.set()
