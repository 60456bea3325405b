"""The seam to what runs a model file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from relight.wire.tensors import Array, TensorSpec

Kind = Literal["auto", "gpu", "cpu", "model"]
"""Of an ``instance_group``, as in KIND_AUTO. ``model``, which leaves it to the model, is taken for ``auto``."""


@dataclass(frozen=True)
class Declared:
    """What is said of a model beside its file, in config.pbtxt or by the function, as far as a backend acts on it.

    Shapes are whole shapes, the batch included. Files that describe themselves (ONNX, exported programs, TensorRT
    plans) need no ``inputs`` and ``outputs``; TorchScript and safetensors do.
    """

    inputs: Sequence[TensorSpec] = ()
    outputs: Sequence[TensorSpec] = ()
    kind: Kind = "auto"
    gpus: Sequence[int] = ()
    """Which GPUs this instance may use; the first one is taken. Empty: the first that is visible."""
    accelerators: Sequence[str] = ()
    """``gpu_execution_accelerator`` names of config.pbtxt; ``tensorrt`` is acted on."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    instances: int = 1
    """Runs that may go on at the same time: where no number of threads is given, they share the processors."""


NOTHING = Declared()


@dataclass(frozen=True)
class Placement:
    """Where a model runs, and why there."""

    device: str
    """``cpu`` or ``cuda:N``."""
    engine: str
    """What computes there: an execution provider of ONNX Runtime, ``torch``, ``tensorrt``."""
    threads: int
    reason: str

    def describe(self) -> dict[str, str]:
        """For metadata and logs: text by name."""
        return {"device": self.device, "engine": self.engine, "threads": str(self.threads), "reason": self.reason}


class Session(Protocol):
    """A model in memory. ``run`` may be called from several threads."""

    @property
    def inputs(self) -> Sequence[TensorSpec]: ...

    @property
    def outputs(self) -> Sequence[TensorSpec]: ...

    @property
    def placement(self) -> Placement: ...

    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """Compute all outputs."""
        ...

    def settle(self) -> None:
        """Wait for what goes on behind the first result, if anything does: from then on the session is at its best."""
        ...

    def close(self) -> None:
        """Let go of the model and end what works behind it. Idempotent."""
        ...
