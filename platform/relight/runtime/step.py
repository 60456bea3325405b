"""Steps: JSON or an event in, JSON or an event out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from relight.runtime.context import FunctionSettings
from relight.runtime.function import Function
from relight.runtime.localmodels import LocalModels
from relight.wire.cloudevents import Event


class Step(Function):
    """A step of a chain: the author writes ``run``, and ``load`` where there is something to load."""

    concurrency: int = 8
    """How many calls of ``run`` may be going on at once, each in a thread."""

    uses_models: ClassVar[Sequence[str]] = ()
    """Models of the repository that are loaded before the step is ready; others are when they are first used."""
    models: LocalModels
    """The repository's models in this process: ``self.models["name"].infer({...})``. There from ``load`` on."""

    def prepare(self, settings: FunctionSettings) -> None:
        self.models = LocalModels(settings)
        self.within_load = self.models.preload(self.uses_models)

    def run(self, data: Any, event: Event | None) -> Any:
        """Work on the JSON of a request, or on an event's data; ``event`` is None for plain requests.

        Returns what can be written as JSON, an ``Event``, or None for "nothing to say" (204). What it raises is a 500
        without its text, except the errors of ``relight.sdk`` such as ``BadInput``, which are told to the caller.
        """
        raise NotImplementedError(f"{type(self).__name__} has no run")
