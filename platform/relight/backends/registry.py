"""Which backend runs a model: by config.pbtxt's ``backend`` or ``platform``, else by the name of the file."""

from __future__ import annotations

from importlib import import_module
from pathlib import PurePath

from relight.backends.base import Backend
from relight.base.errors import BadInput

_CLASSES = {
    "onnxruntime": ("relight.backends.onnxruntime", "OnnxRuntime"),
    "pytorch": ("relight.backends.torch", "Torch"),
    "tensorrt": ("relight.backends.tensorrt", "TensorRt"),
}
_PLATFORMS = {"onnxruntime_onnx": "onnxruntime", "pytorch_libtorch": "pytorch", "tensorrt_plan": "tensorrt"}
_SUFFIXES = {
    ".onnx": "onnxruntime",
    ".pt": "pytorch",
    ".pt2": "pytorch",
    ".safetensors": "pytorch",
    ".plan": "tensorrt",
}
PICKLES = frozenset({".pth", ".bin", ".pkl", ".pickle", ".ckpt"})
"""What torch.save and pickle write by habit. Reading one runs the code in it, so none is read."""


def backend_for(platform: str | None, backend: str | None, filename: str) -> Backend:
    """The backend of a model. Its library is imported when the first model is opened, not here."""
    suffix = PurePath(filename).suffix
    if suffix in PICKLES:
        raise BadInput(
            f"{filename}: pickles are not loaded, for loading one runs the code in it; "
            "save the model as an exported program (model.pt2) or its weights as model.safetensors"
        )
    name = backend or _PLATFORMS.get(platform or "") or (None if platform else _SUFFIXES.get(suffix))
    if name not in _CLASSES:
        given = f"backend {backend!r}" if backend else f"platform {platform!r}" if platform else f"the file {filename}"
        raise BadInput(
            f"nothing here runs {given}; expected a backend of {', '.join(_CLASSES)}, a platform of "
            f"{', '.join(_PLATFORMS)}, or a file ending in {', '.join(_SUFFIXES)}"
        )
    module, attribute = _CLASSES[name]
    made: Backend = getattr(import_module(module), attribute)()
    return made
