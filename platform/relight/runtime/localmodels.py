"""Models of the repository, called by the author's code in the same process: no HTTP, the same queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from relight.base.errors import BadInput, Deadline, NotFound, Problem
from relight.runtime.batcher import Job
from relight.wire import tensors
from relight.wire.tensors import Array, TensorSpec

if TYPE_CHECKING:
    from relight.runtime.context import FunctionSettings
    from relight.runtime.residents import Residents

WAIT = 60.0
"""Seconds for an answer, and as many for a model that is still to be loaded."""


class LocalModel:
    """One model by name. Calls may come from several threads, and wait for each other as requests do."""

    def __init__(self, residents: Residents, name: str, version: int | None) -> None:
        self._residents = residents
        self.name = name
        self.version = version

    def infer(
        self,
        inputs: Mapping[str, Any],
        *,
        parameters: Mapping[str, Any] | None = None,
        timeout: float = WAIT,
    ) -> dict[str, Array]:
        """The outputs for some inputs: arrays, or what numpy makes arrays of; texts for BYTES.

        BadInput names every input that does not fit, NotFound an unknown model, Deadline one that took too long.
        """
        with self._residents.lease(self.name, self.version, timeout) as served:
            job = Job(fitting(inputs, served.model.inputs), parameters or {})
            try:
                return served.submit(job).result(timeout).outputs
            except TimeoutError:
                raise Deadline(f"model {self.name!r} did not answer within {timeout:g} s") from None


class LocalModels:
    """Models by name: ``models["bert"]`` is the version that is served, ``models["bert", 2]`` that one.

    What they need is made at the first use: most steps call no model in their own process.
    """

    def __init__(self, settings: FunctionSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._opened: Callable[[Residents], None] = lambda residents: None
        self.residents: Residents | None = None

    def __getitem__(self, key: str | tuple[str, int]) -> LocalModel:
        name, version = key if isinstance(key, tuple) else (key, None)
        return LocalModel(self._there(), name, version)

    def preload(self, names: Iterable[str]) -> Mapping[str, float]:
        """Load models now, and wait for that; the seconds of it that were not loading, by phase."""
        wanted = list(names)
        return self._there().preload(wanted) if wanted else {}

    def when_used(self, opened: Callable[[Residents], None]) -> None:
        """Tell of the models' process-wide part once it is there, or now if it is."""
        with self._lock:
            self._opened = opened
            if self.residents is not None:
                opened(self.residents)

    def _there(self) -> Residents:
        if self._settings.repository is None:
            raise NotFound("this function has no models: RELIGHT_REPOSITORY is not set")
        with self._lock:
            if self.residents is None:
                from relight.runtime.residents import Residents

                self.residents = Residents(self._settings)
                self._opened(self.residents)
            return self.residents


def fitting(inputs: Mapping[str, Any], specs: Iterable[TensorSpec]) -> dict[str, Array]:
    """Inputs as a model takes them. BadInput names every one that does not fit."""
    known = {spec.name: spec for spec in specs}
    problems = [
        Problem(name, f"the model has no such input; it has {', '.join(known)}") for name in inputs.keys() - known
    ]
    arrays: dict[str, Array] = {}
    for name, spec in known.items():
        if name not in inputs:
            if not spec.optional:
                problems.append(Problem(name, "missing"))
            continue
        array = _typed(inputs[name], spec.datatype)
        if array is None:
            have = np.asarray(inputs[name]).dtype
            problems.append(
                Problem(name, f"expected {spec.datatype}, got {have}, which does not become it without loss")
            )
        elif not spec.accepts(array.shape):
            problems.append(Problem(name, f"expected the shape {list(spec.shape)}, got {list(array.shape)}"))
        else:
            arrays[name] = array
    if problems:
        raise BadInput.of(problems)
    return arrays


def _typed(value: Any, datatype: str) -> Array | None:
    """An array of a datatype; None where that would lose something."""
    array = np.asarray(value)
    dtype = tensors.numpy_dtype(datatype)
    if datatype == "BYTES":
        texts = np.empty(array.shape, dtype=object)
        texts.ravel()[:] = [tensors.element_bytes(item) for item in array.ravel().tolist()]
        return texts
    if array.dtype == dtype:
        return array
    if not isinstance(value, np.ndarray | np.generic) and array.dtype.kind in "iuf":
        # Python's numbers have no size of their own: they are what the model wants, if it can hold them.
        with np.errstate(over="ignore", invalid="ignore"):
            cast = array.astype(dtype)
        return cast if dtype.kind == "f" or np.array_equal(cast, array) else None
    return array.astype(dtype) if np.can_cast(array.dtype, dtype, "safe") else None
