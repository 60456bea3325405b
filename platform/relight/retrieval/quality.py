"""Whether the index at work still finds what exact search finds: recall@k on a sample of the questions asked last.

An index loses by growing away from its parameters, by deletes, by other data than it was built for; no error tells it.
Exact answers come from a scan of the collection, once for the whole sample, in batches: memory stays flat.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from relight.base.errors import RelightError
from relight.retrieval.vectors import DEFAULT_TENANT, Query, VectorStore, row_key
from relight.wire.tensors import Array

SAMPLE = 50
"""Questions: recall@10 over 50 has a standard error of about 1 % at 0.95."""
K = 10


@dataclass(frozen=True)
class Recall:
    """One look: the mean share of the true ``k`` nearest that the index found, over so many questions."""

    value: float
    questions: int
    rows: int
    seconds: float


class RollingSample:
    """Vectors of the questions that were asked: each of the last ``of`` has the same chance to be among ``size``."""

    def __init__(self, size: int = SAMPLE, of: int = 1000, seed: int = 0) -> None:
        self._last: deque[tuple[str, tuple[float, ...]]] = deque(maxlen=of)
        self._size = size
        self._random = Random(seed)
        self._lock = threading.Lock()

    def add(self, vector: Sequence[float], tenant: str = DEFAULT_TENANT) -> None:
        """Remember a question without a filter: with one, less is asked of the index."""
        with self._lock:
            self._last.append((tenant, tuple(vector)))

    def draw(self) -> list[tuple[str, tuple[float, ...]]]:
        with self._lock:
            return self._random.sample(list(self._last), min(self._size, len(self._last)))


def measure_recall(store: VectorStore, sample: Sequence[tuple[str, Sequence[float]]], k: int = K) -> Recall | None:
    """Ask the index and a scan the same questions; None where there is nothing to ask or to find.

    A row that is written between the two looks counts against the index: a look is for quiet times.
    """
    begun = time.monotonic()
    space = store.space()
    if space is None or not sample:
        return None
    questions = np.array([vector for _, vector in sample], np.float32)
    tenants = [tenant for tenant, _ in sample]
    if space.metric == "cosine":
        questions /= np.maximum(np.linalg.norm(questions, axis=1, keepdims=True), 1e-12)
    best = [_Best(k) for _ in sample]
    rows = 0
    for batch in store.scan():
        rows += len(batch)
        vectors = np.array([row.vector for row in batch], np.float32)
        if space.metric == "cosine":
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        scores = questions @ vectors.T
        owners = np.array([row.tenant for row in batch])
        keys = [row.key for row in batch]
        for number, tenant in enumerate(tenants):
            best[number].offer(np.where(owners == tenant, scores[number], -np.inf), keys)
    shares = []
    for (tenant, vector), exact in zip(sample, best, strict=True):
        if exact.kept:
            hits = store.search(vector, Query(k=k, tenant=tenant))
            found = {row_key(tenant, hit.document, hit.chunk) for hit in hits}
            shares.append(exact.share_of(found, [hit.score for hit in hits]))
    return Recall(float(np.mean(shares)), len(shares), rows, time.monotonic() - begun) if shares else None


class _Best:
    """The ``k`` best of what was offered."""

    def __init__(self, k: int) -> None:
        self._k = k
        self.kept: list[tuple[float, str]] = []

    def offer(self, scores: Array, keys: Sequence[str]) -> None:
        order = np.argsort(-scores, kind="stable")[: self._k]
        self.kept += [(float(scores[row]), keys[row]) for row in order if np.isfinite(scores[row])]
        self.kept = sorted(self.kept, reverse=True)[: self._k]

    def share_of(self, found: set[str], scores: Sequence[float]) -> float:
        """How many of them were found; one that ties with the last of them is as good as it."""
        last = self.kept[-1][0]
        ties = sum(score >= last - 1e-6 for score in scores)
        return min(len(self.kept), max(ties, sum(key in found for _, key in self.kept))) / len(self.kept)


class RecallWatch:
    """Measures in a thread of its own, every ``every`` seconds, and tells each result to ``tell``; 0: never.

    ``store`` is its own, and closed with it.

    A look that fails is told as None: what is not known is not what was known before.
    """

    def __init__(
        self, store: VectorStore, sample: RollingSample, tell: Callable[[Recall | None], None], every: float
    ) -> None:
        self._store = store
        self._sample = sample
        self._tell = tell
        self._every = every
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._every > 0 and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="recall-watch", daemon=True)
            self._thread.start()

    def close(self, timeout: float = 5.0) -> None:
        """End it; a look that is going on is waited for that long. Idempotent."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout)
        self._store.close()

    def _run(self) -> None:
        while not self._stopping.wait(self._every):
            try:
                self._tell(measure_recall(self._store, self._sample.draw()))
            except RelightError:
                self._tell(None)
