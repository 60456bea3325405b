"""BM25 in this process (bm25s), for stores that have none of their own or one that is too slow.

The index is built from the store's rows when it is first asked for, and again when the collection's version has
changed: what is written is found at once, at the price of a scan. It holds terms as numbers and keys, no text; the
answers' rows, and whether they pass the filter, come from the store.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relight.retrieval.analysis import terms
from relight.retrieval.vectors import Hit, Query
from relight.wire.tensors import Array

log = logging.getLogger("relight.retrieval.lexical")

K1, B = 1.2, 0.75
"""BM25's usual constants (Robertson & Zaragoza 2009; those of Lucene)."""
CANDIDATES, MOST_CANDIDATES = 100, 5000
"""Rows that are fetched at once, best first, until enough have passed the filter: at first, and at the most."""


@dataclass(frozen=True)
class Bm25:
    """An index over texts; ``keys`` names them in its order."""

    keys: Sequence[str]
    model: Any

    @classmethod
    def of(cls, texts: Iterable[tuple[str, str]]) -> Bm25:
        """Of (key, text) pairs, read once."""
        import bm25s

        keys: list[str] = []
        numbers: dict[str, int] = {}
        corpus: list[list[int]] = []
        for key, text in texts:
            keys.append(key)
            corpus.append([numbers.setdefault(term, len(numbers)) for term in terms(text)])
        model = bm25s.BM25(method="lucene", k1=K1, b=B)
        if numbers:
            model.index(bm25s.tokenization.Tokenized(ids=corpus, vocab=numbers), show_progress=False)
        return cls(keys, model if numbers else None)

    def save(self, folder: Path) -> None:
        """Write it to a folder that then holds all of it or is not there."""
        partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        np.save(partial / "keys.npy", np.array(self.keys, "S40"))
        if self.model is not None:
            self.model.save(str(partial), show_progress=False)
        try:
            partial.rename(folder)
        except OSError:
            shutil.rmtree(partial, ignore_errors=True)  # another replica was first, with the same

    @classmethod
    def load(cls, folder: Path) -> Bm25 | None:
        """What was saved, its arrays mapped into memory; None where nothing is there, or nothing that can be read."""
        import bm25s

        try:
            keys = [key.decode() for key in np.load(folder / "keys.npy").tolist()]
            empty = not (folder / "params.index.json").exists()
            return cls(keys, None if empty else bm25s.BM25.load(str(folder), mmap=True, load_corpus=False))
        except (OSError, ValueError, KeyError):
            return None

    def scores(self, text: str) -> Array:
        """BM25's sum for each key: FP32 [n]; 0 where no term is in common."""
        if self.model is None:
            return np.zeros(len(self.keys), np.float32)
        known = [term for term in terms(text) if term in self.model.vocab_dict]
        if not known:
            return np.zeros(len(self.keys), np.float32)
        found: Array = self.model.get_scores(known)
        return found

    def best(self, text: str, k: int) -> list[tuple[str, float]]:
        """The best ``k`` keys with their sums; of equal ones, the first in order of the texts."""
        scores = self.scores(text)
        return [(self.keys[row], float(scores[row])) for row in top(scores, k) if scores[row] > 0]


class LexicalIndex:
    """BM25 over a collection, as of one version of it. Safe to call from several threads.

    ``version``, ``scan`` and ``fetch`` are of the store: its version; all (key, text); the hits of some keys that pass
    a query's tenant and filter, by key. ``cache``: a folder that keeps the index of the last version for the next
    replica; of a version that is not the collection's, it is not used.
    """

    def __init__(
        self,
        version: Callable[[], str],
        scan: Callable[[], Iterable[tuple[str, str]]],
        fetch: Callable[[Sequence[str], Query], dict[str, Hit]],
        cache: Path | None = None,
    ) -> None:
        self._version = version
        self._scan = scan
        self._fetch = fetch
        self._cache = cache
        self._built: tuple[str, Bm25] | None = None
        self._building = threading.Lock()

    def search(self, text: str, query: Query) -> list[Hit]:
        index = self._current()
        scores = index.scores(text)
        order = top(scores, int(np.count_nonzero(scores > 0)))
        hits: list[Hit] = []
        at, size = 0, CANDIDATES
        while at < len(order) and len(hits) < query.offset + query.k:
            rows = order[at : at + size]
            # Where few pass the filter, soon many are asked for at once.
            at, size = at + size, min(2 * size, MOST_CANDIDATES)
            found = self._fetch([index.keys[row] for row in rows], query)
            for row in rows:
                hit = found.get(index.keys[row])
                if hit is not None:
                    hits.append(Hit(hit.document, hit.chunk, hit.text, float(scores[row]), hit.metadata))
        return hits[query.offset : query.offset + query.k]

    def _current(self) -> Bm25:
        with self._building:
            # The version is read first: a row that comes during the scan may be in it, and the next search looks again.
            version = self._version()
            if self._built is None or self._built[0] != version:
                self._built = (version, self._kept(version) or self._made(version))
            return self._built[1]

    def _kept(self, version: str) -> Bm25 | None:
        return Bm25.load(self._cache / version) if self._cache is not None and version else None

    def _made(self, version: str) -> Bm25:
        index = Bm25.of(self._scan())
        if self._cache is not None and version:
            others = list(self._cache.iterdir()) if self._cache.is_dir() else []
            try:
                shutil.rmtree(self._cache / version, ignore_errors=True)  # one that could not be read
                index.save(self._cache / version)
                for old in others:
                    if old.name != version:
                        shutil.rmtree(old, ignore_errors=True)
            except OSError as error:
                log.warning("words.not_kept folder=%s error=%s: the next replica builds it again", self._cache, error)
        return index


def top(scores: Array, k: int) -> list[int]:
    """The rows of the ``k`` highest scores, best first; of equal ones, the first."""
    if k <= 0:
        return []
    if k < len(scores):
        some = np.argpartition(-scores, k - 1)[:k]
        worst = scores[some].min()
        some = np.flatnonzero(scores >= worst)
    else:
        some = np.arange(len(scores))
    ordered = some[np.argsort(-scores[some], kind="stable")]
    return [int(row) for row in ordered[:k]]
