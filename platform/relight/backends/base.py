"""The seam to what runs a model file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from relight.wire.tensors import Array, TensorSpec


class Session(Protocol):
    """A model in memory. ``run`` may be called from several threads."""

    @property
    def inputs(self) -> Sequence[TensorSpec]: ...

    @property
    def outputs(self) -> Sequence[TensorSpec]: ...

    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """Compute all outputs."""
        ...

    def close(self) -> None:
        """Let go of the model and end what works behind it. Idempotent."""
        ...


class Backend(Protocol):
    """Opens model files of one kind."""

    def open(
        self, path: Path, *, threads: int | None = None, cache: Path | None = None, digest: str | None = None
    ) -> Session:
        """Load a model.

        ``threads`` None: as many as this process may use. ``cache`` is a folder of this node for what can be made
        again; ``digest`` names the file's content there, its path, size and time do where it is None. MissingWeights
        or CorruptWeights name the file that is not there or cannot be read.
        """
        ...
