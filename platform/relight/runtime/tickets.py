"""What waits for a model: a request's ticket, and its seats in the runs to come."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from relight.base.errors import BadInput, Problem
from relight.decide.batching import BatchingSettings, Passenger
from relight.runtime.futures import LeanFuture
from relight.wire.tensors import Array

TIMING = frozenset({"timeout", "priority"})
"""Parameters that say how long a request waits, and before whom."""
UNMERGED = TIMING | {"binary_data_output"}
"""Parameters that say how a request waits or is answered, not what is computed: those may differ within a batch."""


class Job(msgspec.Struct, frozen=True, eq=False):
    """One request for a model: tensors that fit its specification. Only jobs with equal parameters may be merged."""

    inputs: dict[str, Array]
    parameters: Mapping[str, Any] = {}


class Computed(msgspec.Struct, frozen=True, eq=False):
    """What came out, and the seconds that the request waited and was computed."""

    outputs: dict[str, Array]
    queue: float
    infer: float


class Ticket(LeanFuture[Computed]):
    """The future of one request. Cancelled while it waits, it is not computed; later, what is left of it is not."""

    def __init__(self, job: Job, arrived: float, level: int, left: Callable[[], None]) -> None:
        super().__init__()
        self.job = job
        self.arrived = arrived
        self.level = level
        self.gone = False
        """Nobody waits for it any more, or it has failed: its seats are given up."""
        self.begun: float | None = None
        self.parts: list[dict[str, Array] | None] = [None]
        self.infer = 0.0
        self.outcome: Computed | BaseException | None = None
        self._left = left

    def cancel(self) -> bool:
        cancelled = super().cancel()
        if not self.done() or cancelled:
            self.gone = True
            self._left()
        return cancelled

    def board(self, now: float) -> bool:
        """A part is about to be computed; False where nobody wants it any more."""
        if self.gone:
            return False
        if self.begun is None:
            if not self.set_running_or_notify_cancel():
                return False
            self.begun = now
        return True

    def arrive(self, part: int, outputs: dict[str, Array], seconds: float) -> bool:
        """A part is computed; True where it was the last one."""
        self.parts[part] = outputs
        self.infer += seconds
        if len(self.parts) > 1:
            parts = [one for one in self.parts if one is not None]
            if len(parts) < len(self.parts) or self.outcome is not None:
                return False
            outputs = {name: np.concatenate([one[name] for one in parts]) for name in outputs}
        begun = self.arrived if self.begun is None else self.begun
        self.outcome = Computed(outputs, begun - self.arrived, self.infer)
        return True

    @property
    def over(self) -> bool:
        """Whether nothing more comes of it than what ``settle`` tells."""
        return self.gone or self.outcome is not None or self.done()

    def refuse(self, error: BaseException) -> None:
        """End it with an error, wherever it is."""
        self.gone = True
        with suppress(InvalidStateError):
            self.set_exception(error)

    def settle(self) -> None:
        """Tell the outcome to whoever waits. Not under a lock: callbacks run here."""
        outcome = self.outcome
        if self.done():
            return  # Cancelled, or answered at its deadline.
        with suppress(InvalidStateError):  # The same, at this very moment.
            if isinstance(outcome, BaseException):
                self.set_exception(outcome)
            elif outcome is not None:
                self.set_result(outcome)


@dataclass(slots=True, eq=False, kw_only=True)
class Seat(Passenger):
    """A ticket, or a part of one, in the queue. ``part`` counts from 0, ``start`` is its first row."""

    ticket: Ticket
    part: int = 0
    start: int = 0

    def inputs(self) -> dict[str, Array]:
        """Its rows."""
        inputs = self.ticket.job.inputs
        if len(self.ticket.parts) == 1:
            return inputs
        return {name: array[self.start : self.start + self.rows] for name, array in inputs.items()}


def measured(job: Job, settings: BatchingSettings) -> tuple[int, Hashable | None, int]:
    """Rows, group and weight of a job, as a passenger has them; no group where it can only ride alone."""
    inputs = job.inputs
    if len(inputs) == 1 and not settings.ragged:
        ((name, array),) = inputs.items()
        shape = array.shape
        rows = shape[0] if shape else 0
        kinds: Hashable = (name, array.dtype.char, shape[1:])
    else:
        counts = {len(array) if array.ndim else 0 for array in inputs.values()}
        rows = counts.pop() if len(counts) == 1 else 0
        kinds = tuple(
            (name, array.dtype.char, array.ndim if name in settings.ragged else array.shape[1:])
            for name, array in sorted(inputs.items())
        )
    weight = sum(map(_elements, inputs.values())) // (rows or 1)
    if not rows:
        return 1, None, weight.bit_length()
    parameters = job.parameters
    if parameters and not parameters.keys() <= UNMERGED:
        # 1, 1.0 and True are equal to Python, and need not be so to a model.
        told = tuple([(k, type(v), v) for k, v in sorted(parameters.items()) if k not in UNMERGED])
        return rows, (told, kinds), weight.bit_length()
    return rows, kinds, weight.bit_length()


def _elements(array: Array) -> int:
    """Texts count by their bytes."""
    return sum(map(_bytes, array.ravel().tolist())) if array.dtype.char == "O" else array.size


def _bytes(element: object) -> int:
    return len(element) if isinstance(element, bytes | str) else 1


def asked_timeout(parameters: Mapping[str, Any]) -> float:
    """Seconds from the parameter ``timeout``, which is in microseconds as Triton has it; 0: none is asked for."""
    return _whole(parameters, "timeout", "microseconds") / 1e6


def asked_level(parameters: Mapping[str, Any]) -> int:
    """The parameter ``priority``; 0 asks for the default."""
    return _whole(parameters, "priority", "the level")


def _whole(parameters: Mapping[str, Any], name: str, unit: str) -> int:
    value = parameters.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        message = f"expected a whole number of at least 0, {unit}, got {value!r}"
        raise BadInput.of([Problem(f"parameters.{name}", message)])
    return value
