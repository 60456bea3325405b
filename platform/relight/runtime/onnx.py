"""A model of the repository that ONNX Runtime runs, with no code of the user's."""

from __future__ import annotations

from relight.backends.base import Session
from relight.backends.onnxruntime import OnnxRuntime
from relight.base.errors import MissingWeights
from relight.runtime.model import Model
from relight.wire.tensors import Array


class OnnxModel(Model):
    """Serves the repository's model ``RELIGHT_MODEL``; inputs and outputs are those of its file."""

    uses_repository = True
    platform = "onnxruntime_onnx"
    file = "model.onnx"
    """Its name in the model's version folder, as Triton has it."""
    session: Session

    def load(self) -> None:
        if self.context.files is None:
            raise MissingWeights(f"the model {self.context.model!r} has no folder of weights")
        self.session = OnnxRuntime().open(
            self.context.files / self.file, cache=self.context.cache, digest=self.context.digest
        )
        self.inputs = self.session.inputs
        self.outputs = self.session.outputs

    def infer(self, inputs: dict[str, Array]) -> dict[str, Array]:
        return self.session.run(inputs)

    def unload(self) -> None:
        self.session.close()
