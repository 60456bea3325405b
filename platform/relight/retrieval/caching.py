"""Answers that are kept: by the question, folded, all its parameters, and the collection's version."""

from __future__ import annotations

import json
import threading
import unicodedata
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

T = TypeVar("T")

ENTRIES = 512
"""Of one process: answers of ten hits take about ten kilobytes each."""


def cache_key(text: str, parameters: Mapping[str, Any]) -> str:
    """The same for questions that differ in case, width of letters or spaces only."""
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return json.dumps([folded, parameters], sort_keys=True, ensure_ascii=False, default=str)


class ResultCache(Generic[T]):
    """The answers that were asked for last. Any write to the collection makes all of it stale: its version changes."""

    def __init__(self, entries: int = ENTRIES) -> None:
        self._entries = entries
        self._kept: OrderedDict[str, tuple[str, T]] = OrderedDict()
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    def get(self, key: str, version: str) -> T | None:
        """The answer, if it is of this version."""
        with self._lock:
            found = self._kept.get(key)
            if found is None or found[0] != version or not version:
                self.misses += 1
                return None
            self._kept.move_to_end(key)
            self.hits += 1
            return found[1]

    def put(self, key: str, version: str, answer: T) -> None:
        """Keep an answer. ``version`` is what was read before the search, so that a write during it makes it stale."""
        with self._lock:
            if self._entries and version:
                self._kept[key] = (version, answer)
                self._kept.move_to_end(key)
                while len(self._kept) > self._entries:
                    self._kept.popitem(last=False)
