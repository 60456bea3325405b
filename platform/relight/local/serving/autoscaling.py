"""Driving the autoscaler: each second the load is read, every other second a decision is made and applied.

The decisions themselves are in ``decide``. A revision at zero that nobody calls costs nothing here: it is looked at
again when a request arrives (the activator's wake) or when its object changes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from relight.decide import traces
from relight.decide.last_step import UNKNOWN, Activity, ScaleTarget, Step, last_step
from relight.decide.scaling import (
    BUCKET,
    TICK,
    Decision,
    Observation,
    RevisionScaling,
    ScalerState,
    decide,
    initial_state,
)
from relight.decide.windows import LinearAverage, WeightedAverage
from relight.local.serving.activator import Gate
from relight.local.serving.replicas import Replicas
from relight.local.serving.types import RevisionKey

log = logging.getLogger("relight.local.serving")


@dataclass(frozen=True)
class Scale:
    """What a PodAutoscaler's status tells."""

    activity: Activity
    initialized: bool
    desired: int
    """Replicas wanted; -1: nothing is known yet."""


class Room(Protocol):
    """Who keeps count of the machine's room, told by a scaler whether its revision has enough."""

    def wanting(self, key: RevisionKey) -> None: ...

    def served(self, key: RevisionKey) -> None: ...


class Scaler:
    """The autoscaler of one revision. ``changed`` is called when what ``scale`` tells has changed."""

    def __init__(
        self,
        key: RevisionKey,
        spec: RevisionScaling,
        replicas: Replicas,
        gate: Gate,
        *,
        initialized: bool,
        changed: Callable[[], None],
        now: float,
        trace: Callable[[Mapping[str, Any]], None] | None = None,
        room: Room | None = None,
    ) -> None:
        self._room = room
        self.key = key
        self.spec = spec
        self.reachable = True
        self._replicas = replicas
        self._gate = gate
        self._changed = changed
        self._trace = trace
        self._desired = UNKNOWN
        self._state: ScalerState = initial_state(0, now)
        self._stable, self._panic = _windows(spec)
        self._since = now
        # All requests pass the router, so the activator is always in the path, and has been long enough.
        self._proxy_since = now - spec.grace_period
        # One that has proven itself, and that nothing keeps, is wanted by nobody yet.
        desired = 0 if initialized and spec.min_scale == 0 else UNKNOWN
        self.scale = Scale(Activity.INACTIVE if initialized else Activity.ACTIVATING, initialized, desired)

    @property
    def dormant(self) -> bool:
        """Nothing runs, nothing is held, nothing is wanted: there is nothing to decide."""
        return (
            self.scale.activity is Activity.INACTIVE
            and self._replicas.want == 0
            and self._gate.held == 0
            and self.spec.min_scale == 0
        )

    def begin(self) -> None:
        """A new revision proves itself with its initial scale; one that has, starts with its minimum."""
        first = self.spec.min_scale if self.scale.initialized else max(self.spec.initial_scale, self.spec.min_scale)
        if first > 0 and (self.reachable or not self.scale.initialized):
            self._replicas.scale(first)
            self._placed(first, self._since)

    def configure(self, spec: RevisionScaling, reachable: bool, now: float) -> None:
        """Other annotations, or another reachability: both count from the next decision on."""
        if spec == self.spec and reachable == self.reachable:
            return
        if (spec.stable_window, spec.panic_window) != (self.spec.stable_window, self.spec.panic_window):
            self._stable, self._panic = self._stable.resize(spec.stable_window), self._panic.resize(spec.panic_window)
        self.spec, self.reachable = spec, reachable
        self.decide(now)

    def observe(self, now: float) -> None:
        """Put the load since the last time into the windows."""
        sample = self._gate.sample(now)
        self._record(now, sample.requests if self.spec.metric == "rps" else sample.average_concurrency)

    def _record(self, now: float, value: float) -> None:
        self._stable.record(now, value)
        self._panic.record(now, value)

    def poke(self, now: float) -> None:
        """A request arrived at zero: decide at once, with what is held counted in full."""
        self._gate.sample(now)
        self._record(now, max(1.0, float(self._gate.held)))
        self.decide(now)

    def decide(self, now: float) -> Decision:
        """Decide from what was observed, and apply it."""
        empty = self._stable.empty(now)
        seen = Observation(
            ready=self._replicas.ready,
            stable=None if empty else self._stable.average(now),
            panic=None if empty else self._panic.average(now),
            reachable=self.reachable,
            starting=self._replicas.starting,
        )
        before = self._state
        decision, self._state = decide(self.spec, before, seen, now)
        self._desired = decision.desired if decision.valid else UNKNOWN
        target = self._target()
        step = last_step(self.spec, target, self._desired, now)
        if self._trace is not None:
            self._trace(
                traces.document(str(self.key), now, self.spec, before, seen, decision, self._state, target, step)
            )
        self._apply(step, now)
        return decision

    def replicas_changed(self, now: float) -> None:
        """A replica became ready, or is gone: what was being activated may be active now, before the next decision."""
        if self.scale.activity is Activity.ACTIVATING:
            self._apply(last_step(self.spec, self._target(), self._desired, now), now)

    def room_changed(self, now: float) -> None:
        """The machine has more room: what could not be started may be now."""
        self._apply(last_step(self.spec, self._target(), self._desired, now), now)

    def _placed(self, want: int, now: float) -> None:
        """Say whether the machine holds what is wanted. While it does not, the time to become active does not run."""
        if self._room is None:
            return
        if self._replicas.missing or want > max(self._replicas.want, self._replicas.here):
            if self.scale.activity is Activity.ACTIVATING:
                self._since = now
            self._room.wanting(self.key)
        else:
            self._room.served(self.key)

    def _target(self) -> ScaleTarget:
        return ScaleTarget(
            replicas=self._replicas.want,
            ready=self._replicas.ready,
            activity=self.scale.activity,
            since=self._since,
            initialized=self.scale.initialized,
            reachable=self.reachable,
            proxy_since=self._proxy_since,
            slots=self._replicas.slots,
        )

    def _apply(self, step: Step, now: float) -> None:
        if step.scale is not None:
            log.info(
                "scale revision=%s from=%d to=%d reason=%r", self.key, self._replicas.want, step.scale, step.reason
            )
            self._replicas.scale(step.scale)
        if step.activity is not self.scale.activity:
            self._since = now
        scale = Scale(step.activity, step.initialized, step.want)
        if scale != self.scale:
            self.scale = scale
            self._changed()
        self._placed(max(step.want, self._replicas.want), now)


def _windows(spec: RevisionScaling) -> tuple[LinearAverage, LinearAverage]:
    kind = WeightedAverage if spec.aggregation == "weighted-exponential" else LinearAverage
    return kind(spec.stable_window), kind(spec.panic_window)


class Autoscaler:
    """The clock of all scalers."""

    def __init__(self, trace: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        self._scalers: dict[RevisionKey, Scaler] = {}
        self.trace = trace
        """Told of every decision."""

    def add(self, scaler: Scaler) -> None:
        self._scalers[scaler.key] = scaler

    def drop(self, key: RevisionKey) -> None:
        self._scalers.pop(key, None)

    def poke(self, key: RevisionKey) -> None:
        scaler = self._scalers.get(key)
        if scaler is not None:
            scaler.poke(time.monotonic())

    async def run(self) -> None:
        """Observe each bucket, decide each tick, until cancelled."""
        beats = 0
        while True:
            await asyncio.sleep(BUCKET)
            beats += 1
            now = time.monotonic()
            for scaler in list(self._scalers.values()):
                if scaler.dormant:
                    continue
                try:
                    scaler.observe(now)
                    if beats % round(TICK / BUCKET) == 0:
                        scaler.decide(now)
                except Exception:
                    log.exception("autoscaler.failed revision=%s: it is looked at again at the next tick", scaler.key)
