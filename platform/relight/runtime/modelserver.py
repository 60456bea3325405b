"""The front door: one function, and all the models of the repository behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relight.base.errors import MissingWeights
from relight.runtime.context import FunctionSettings
from relight.runtime.function import Function

if TYPE_CHECKING:
    from relight.runtime.residents import Residents


class ModelServer(Function):
    """Serves every model of the repository by its name, and loads it when it is first asked for.

    ``RELIGHT_MODEL`` names those that are loaded before the function is ready, with commas between them; ``*`` means
    all. If it names one, that one also takes requests that name none, such as events.
    """

    residents: Residents
    """Its models. There from ``load`` on."""
    preloaded: tuple[str, ...] = ()

    def prepare(self, settings: FunctionSettings) -> None:
        from relight.runtime.residents import Residents

        if settings.repository is None:
            raise MissingWeights("this function serves the models of a repository, and RELIGHT_REPOSITORY is not set")
        names = [name.strip() for name in (settings.model or "").split(",")]
        self.preloaded = tuple(name for name in names if name)
        default = self.preloaded[0] if len(self.preloaded) == 1 and self.preloaded[0] != "*" else None
        self.residents = Residents(settings, default)

    def load(self) -> None:
        self.within_load = self.residents.preload(self.preloaded)
