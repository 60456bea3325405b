"""How large and how quick two models are, measured in turns: what else the machine does meanwhile hits both alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from relight.backends.base import Session
from relight.backends.optimizing.samples import Sample, widened

Opener = Callable[[], Session]

BATCH = 8
"""Rows of a batch for throughput, where the model takes batches."""
_LOADS = 3
_ROUND = 0.25
"""Seconds that one model works before the other has its turn."""


@dataclass(frozen=True)
class Figures:
    """Seconds; ``throughput`` in rows per second, ``batch`` rows at a time."""

    size: int
    load: float
    p50: float
    p95: float
    throughput: float
    batch: int


@dataclass
class _Runner:
    """One of the two, and what was seen of it."""

    opener: Opener
    size: int
    samples: Sequence[Sample]
    loads: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    wide_seconds: float = 0.0
    wide_runs: int = 0

    def load(self) -> None:
        """As a cold start has it: open, first answer."""
        begun = time.perf_counter()
        session = self.opener()
        session.run(self.samples[0])
        self.loads.append(time.perf_counter() - begun)
        session.close()

    def open(self) -> None:
        self.session = self.opener()
        self.session.run(self.samples[0])
        self.session.settle()
        wide = widened(self.samples[0], self.session.inputs, BATCH)
        self.batch = BATCH if wide else 1
        self.wide = wide or self.samples[0]
        self.session.run(self.wide)

    def work(self, seconds: float) -> None:
        """Single requests, one after the other; at least one."""
        end = time.perf_counter() + seconds
        while True:
            sample = self.samples[len(self.latencies) % len(self.samples)]
            begun = time.perf_counter()
            self.session.run(sample)
            done = time.perf_counter()
            self.latencies.append(done - begun)
            if done >= end:
                return

    def work_wide(self, seconds: float) -> None:
        begun = time.perf_counter()
        while True:
            self.session.run(self.wide)
            self.wide_runs += 1
            passed = time.perf_counter() - begun
            if passed >= seconds:
                self.wide_seconds += passed
                return

    def figures(self) -> Figures:
        ordered = sorted(self.latencies)
        return Figures(
            self.size,
            sorted(self.loads)[len(self.loads) // 2],
            ordered[len(ordered) // 2],
            ordered[int(len(ordered) * 0.95)],
            self.batch * self.wide_runs / self.wide_seconds,
            self.batch,
        )


def measure(
    before: tuple[Opener, int], after: tuple[Opener, int], samples: Sequence[Sample], seconds: float
) -> tuple[Figures, Figures]:
    """The figures of two models, each given as how to open it and its bytes; each works about ``seconds``.

    Latency and throughput are those of the settled session, by one caller at a time.
    """
    runners = [_Runner(*before, samples), _Runner(*after, samples)]
    for _ in range(_LOADS):
        for runner in runners:
            runner.load()
    try:
        for runner in runners:
            runner.open()
        rounds = max(1, round(seconds / 2 / _ROUND))
        for _ in range(rounds):
            for runner in runners:
                runner.work(min(_ROUND, seconds / 2))
            for runner in runners:
                runner.work_wide(min(_ROUND, seconds / 2))
    finally:
        for runner in runners:
            if hasattr(runner, "session"):
                runner.session.close()
    return runners[0].figures(), runners[1].figures()
