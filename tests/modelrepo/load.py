"""Clients that ask without a pause, from threads of their own, and remember every answer."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from modelrepo.conftest import Door


class Callers:
    """What was answered: ``(status, answer)`` of each request, in the order of the answers."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []
        self._more = threading.Condition()

    def add(self, answer: tuple[int, Any]) -> None:
        with self._more:
            self.answers.append(answer)
            self._more.notify_all()

    def wait_for(self, count: int, answer: object, timeout: float = 30) -> None:
        """Wait until so many have been answered so since now."""
        begun = len(self.answers)
        with self._more:
            assert self._more.wait_for(
                lambda: sum(given[1] == answer for given in self.answers[begun:]) >= count, timeout
            ), f"not answered {answer!r}: {Counter(map(str, self.answers[begun:]))}"

    @property
    def failed(self) -> list[tuple[int, Any]]:
        return [answer for answer in self.answers if answer[0] != 200]


@contextmanager
def calling(door: Door, *models: str, width: int = 4) -> Iterator[Callers]:
    """One caller per model that is given, until the block ends."""
    callers, over = Callers(), threading.Event()

    def call(model: str) -> None:
        while not over.is_set():
            callers.add(door.infer(model, width))

    threads = [threading.Thread(target=call, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    try:
        yield callers
    finally:
        over.set()
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads)
