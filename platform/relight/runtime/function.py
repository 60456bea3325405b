"""What every function is: the object that Knative's Python middleware, gunicorn and local mode call.

An author's class needs no constructor and must not call ours: the parts that live (threads, queue, metrics) are made at
the start, in an ``Engine``.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, ClassVar

from relight.base.errors import BadInput
from relight.runtime.context import FunctionContext, FunctionSettings

if TYPE_CHECKING:
    from relight.runtime.engine import Engine
    from relight.runtime.hosts.asgi import Face

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Function:
    """A model or a step. ``new()`` of a function's package returns one.

    Authors write ``load`` and, in a model, ``infer`` or, in a step, ``run``. ``start``, ``stop``, ``alive``, ``ready``
    and ``handle`` are for hosts.
    """

    uses_repository: ClassVar[bool] = False
    """Whether the model repository is asked for this function's weights before ``load``."""
    reply_type: str | None = None
    """Type of the events that are sent in reply; None: the incoming type with ``.response`` behind it."""
    context: FunctionContext
    """Where and as what this function runs. Set before ``load``."""
    within_load: Mapping[str, float] = {}
    """Seconds of loading that were other phases, by phase: models of the repository are fetched and warmed up there."""
    _engine: Engine | None = None
    _face: Face | None = None

    def prepare(self, settings: FunctionSettings) -> None:
        """For the runtime: make what ``load`` may use, such as models of the repository."""

    def load(self) -> None:
        """Get ready to work. Runs in a thread; whatever it raises is told to every caller, and never retried.

        It runs once, and again only where somebody unloads a model by its name and loads it again.
        """

    def warmup(self) -> None:
        """Run once after ``load``, before the first request, to have everything slow behind."""

    def unload(self) -> None:
        """Let go of what ``load`` took. Runs when nothing is in flight any more."""

    @classmethod
    def default_name(cls) -> str:
        """The name where the environment gives none: the class's, ``TextEncoder`` as ``text-encoder``."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", cls.__name__).lower().strip("_")

    # What func's middleware calls.

    def start(self, cfg: Mapping[str, str]) -> None:
        """Begin to load and return at once: func's middleware calls this on its event loop, before it serves."""
        from relight.runtime.hosts.asgi import Face

        if self._engine is None:
            self._engine = self.http_engine(cfg)
            self._face = Face(self._engine)
            self._engine.start()
            self._face.take_over_sigterm()

    def stop(self) -> None:
        """Let go of everything. Works during a load too."""
        if self._engine is not None:
            self._engine.stop()

    def alive(self) -> tuple[bool, str]:
        """Whether this process can still answer. A failed load is not death: a restart would only repeat it."""
        return (True, "OK") if self._engine is None else self._engine.alive()

    def ready(self) -> tuple[bool, str]:
        """Whether a request would be worked on now; if not, why."""
        return (False, "not started") if self._engine is None else self._engine.ready()

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request as ASGI has it."""
        from relight.runtime.hosts import asgi

        if scope["type"] == "lifespan":
            await asgi.lifespan(self, receive, send)
        elif scope["type"] == "http":
            if self._face is None:
                await asgi.unstarted(scope, send)
            else:
                await self._face.serve(scope, receive, send)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.handle(scope, receive, send)

    def new_engine(self, cfg: Mapping[str, str]) -> Engine:
        """An engine for this function in that environment, for hosts that start and stop it themselves."""
        from relight.runtime.engine import Engine

        try:
            settings = FunctionSettings.from_environ(cfg)
        except BadInput as error:
            # A start that raises ends the process, and the platform starts it anew: a load that fails is told instead.
            return Engine(_raising(error), FunctionSettings())
        return Engine(lambda: self, settings)

    def http_engine(self, cfg: Mapping[str, str]) -> Engine:
        """An engine for hosts that have a server of their own, which speaks HTTP whatever the environment asks for."""
        from relight.runtime.engine import Engine

        engine = self.new_engine(cfg)
        protocol = engine.settings.protocol
        if protocol == "http":
            return engine
        told = f"RELIGHT_PROTOCOL={protocol} is served by relight's worker of gunicorn and by relight.runtime.serve"
        return Engine(_raising(BadInput(told)), FunctionSettings())


def _raising(error: Exception) -> Callable[[], Function]:
    def source() -> Function:
        raise error

    return source
