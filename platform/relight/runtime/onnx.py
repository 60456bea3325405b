"""A model of the repository that ONNX Runtime runs, with no code of the user's."""

from __future__ import annotations

from relight.runtime.repository import RepositoryModel


class OnnxModel(RepositoryModel):
    """Serves the repository's model ``RELIGHT_MODEL``; inputs and outputs are those of its configuration or file."""

    platform = "onnxruntime_onnx"
    file = "model.onnx"
