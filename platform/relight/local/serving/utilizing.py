"""Driving ``class: hpa``: what the replicas use is read, and the number of them follows it every fifteen seconds."""

from __future__ import annotations

import logging

from relight.decide import traces, utilization
from relight.decide.last_step import UNKNOWN, last_step
from relight.decide.scaling import Decision
from relight.decide.utilization import PERIOD, Wishes
from relight.local.serving.autoscaling import Scaler
from relight.local.serving.usage import CpuMeter, resident_bytes

log = logging.getLogger("relight.local.serving")


class UtilizationScaler(Scaler):
    """The autoscaler of one revision of ``class: hpa``."""

    _cpu: CpuMeter | None = None
    _wishes = Wishes()
    _next = 0.0
    """When it decides again, on the clock of ``now``."""
    _warned = False

    @property
    def dormant(self) -> bool:
        """Never: it keeps one replica at least."""
        return False

    def poke(self, now: float) -> None:
        """A request arrived while there is no replica: that one is being started is decided already."""
        self._gate.sample(now)

    def observe(self, now: float) -> None:
        if self.spec.metric in ("concurrency", "rps"):
            super().observe(now)

    def decide(self, now: float) -> Decision:
        """Once a period; in between the last decision stands, and its bounds are looked at."""
        if now >= self._next or self._desired == UNKNOWN:
            self._next = now + PERIOD
            ready = self._replicas.ready
            if ready:
                average, before = self._average(now), self._wishes
                self._desired, self._wishes = utilization.decide(self.spec, before, ready, average, now)
                if self._trace is not None:
                    self._trace(
                        traces.utilization_document(
                            str(self.key), now, self.spec, before, ready, average, self._desired, self._wishes
                        )
                    )
        self._apply(last_step(self.spec, self._target(), self._desired, now), now)
        return Decision(max(0, self._desired), 0, self._desired != UNKNOWN)

    def _average(self, now: float) -> float | None:
        """The metric over the ready replicas, in the unit of its target; None: there is nothing to go by."""
        pids, metric = self._replicas.pids(), self.spec.metric
        if metric == "memory":
            sizes = [size for pid in pids if (size := resident_bytes(pid)) is not None]
            return sum(sizes) / len(sizes) / 2**20 if sizes else None
        if metric == "cpu":
            requested = self._replicas.spec.need.get("cpu", 0) / 1000
            self._cpu = self._cpu or CpuMeter()
            cores = self._cpu.cores(pids, now)
            if not requested:
                self._unknown("its container requests no cpu, of which a percentage could be taken")
                return None
            return 100 * sum(cores) / len(cores) / requested if cores else None
        if metric in ("concurrency", "rps"):
            empty = not pids or self._stable.empty(now)
            return None if empty else self._stable.average(now) / len(pids)
        self._unknown(f"metric {metric!r} is not known here")
        return None

    def _unknown(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("autoscaler.no-metric revision=%s: %s; its number of replicas stays as it is", self.key, why)
