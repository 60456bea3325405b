"""The image's entry: one image for all functions, and its environment says which one a container is.

``gunicorn --config python:relight.runtime.hosts.image_settings "relight.runtime.hosts.image:function()"``
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from relight.base.errors import BadInput
from relight.runtime.context import FunctionSettings
from relight.runtime.engine import Engine
from relight.runtime.function import Function
from relight.runtime.replica import load_function

FOLDER = "/functions"
"""Where the image has the functions, one folder each; ``RELIGHT_FUNCTIONS`` says otherwise."""
FUNCTION = "RELIGHT_FUNCTION"
DEFAULT = "model"
"""The function that serves a model of the repository, for a container that is told nothing."""


class Chosen(Function):
    """Stands for a function that is imported later, by the thread that loads it.

    So the port is there at once, liveness is answered, and an import that fails is told to callers instead of ending
    the process, which would only be started again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def new_engine(self, cfg: Mapping[str, str]) -> Engine:
        try:
            settings, fault = FunctionSettings.from_environ(cfg), None
        except BadInput as error:
            settings, fault = FunctionSettings(), error

        def source() -> Function:
            if fault is not None:
                raise fault
            return load_function(str(self._checked()))

        return Engine(source, settings)

    def _checked(self) -> Path:
        if (self.folder / "function" / "__init__.py").is_file():
            return self.folder
        parent = self.folder.parent
        known = sorted(path.parent.name for path in parent.glob("*/func.yaml")) if parent.is_dir() else []
        there = ", ".join(known) or "none"
        raise BadInput(
            f"{FUNCTION}={self.folder.name!r}: no such function in {parent} (there: {there})", param=FUNCTION
        )


def function() -> Chosen:
    """What gunicorn calls in a worker: the function that the environment names."""
    name = os.environ.get(FUNCTION) or DEFAULT
    if "/" in name or name.startswith("."):
        raise BadInput(f"{FUNCTION}={name!r}: expected the name of a function, not a path", param=FUNCTION)
    return Chosen(Path(os.environ.get("RELIGHT_FUNCTIONS") or FOLDER) / name)
