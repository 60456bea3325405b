"""What a backend is told when it opens a model file."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypedDict, Unpack

from relight.backends import cpus
from relight.backends.base import NOTHING, Declared, Placement, Session
from relight.base.errors import MissingWeights

log = logging.getLogger("relight.backends")


class Options(TypedDict, total=False):
    """The keywords of ``Backend.open``, as the fields of ``Opening`` say them."""

    threads: int | None
    cache: Path | None
    digest: str | None
    declared: Declared


@dataclass(frozen=True)
class Opening:
    """A model file, and how to open it. MissingWeights where the file is not there."""

    path: Path
    threads: int | None = None
    """Of one run; None: as many as this process may use, divided by the instances."""
    cache: Path | None = None
    """A folder of this node for what can be made again."""
    digest: str | None = None
    """Names the file's content in ``cache``; its path, size and time do where it is None."""
    declared: Declared = NOTHING

    def __post_init__(self) -> None:
        if not self.path.is_file():
            raise MissingWeights(f"there is no model file {self.path}")

    @property
    def run_threads(self) -> int:
        return self.threads or cpus.share(self.declared.instances)

    def placed(self, place: Placement) -> Placement:
        """Say where the model runs, and why there."""
        log.info("model.placed model=%s %s", self.path, " ".join(f"{k}={v!r}" for k, v in place.describe().items()))
        return place


class Backend(Protocol):
    """Opens model files of one kind."""

    def open(self, path: Path, **options: Unpack[Options]) -> Session:
        """Load a model.

        MissingWeights or CorruptWeights name the file that is not there or cannot be read, PlatformError what is not
        installed or not there to run it on.
        """
        ...
