"""Which backend runs a model file: by Triton's ``platform`` or ``backend``, else by the file's name.

Backends are imported when the first model of their kind is opened.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection
from dataclasses import dataclass

from relight.backends.opening import Backend
from relight.base.errors import MissingWeights, Unprocessable


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of model files. ``platform`` is what metadata says; the first of ``files`` is Triton's name for it."""

    platform: str
    names: frozenset[str]
    files: tuple[str, ...]
    place: str
    """``module:class`` of the backend."""
    library: str
    """What the backend imports to work."""

    def backend(self) -> Backend:
        module, _, name = self.place.partition(":")
        backend: Backend = getattr(importlib.import_module(module), name)()
        return backend


KINDS = (
    Kind(
        "onnxruntime_onnx",
        frozenset({"onnxruntime_onnx", "onnxruntime"}),
        ("model.onnx",),
        "relight.backends.onnxruntime:OnnxRuntime",
        "onnxruntime",
    ),
    Kind(
        "pytorch_libtorch",
        frozenset({"pytorch_libtorch", "pytorch"}),
        ("model.pt", "model.pt2", "model.safetensors"),
        "relight.backends.torch:Torch",
        "torch",
    ),
    Kind(
        "tensorrt_plan",
        frozenset({"tensorrt_plan", "tensorrt"}),
        ("model.plan",),
        "relight.backends.tensorrt:TensorRT",
        "tensorrt",
    ),
)


def kind_of(platform: str, backend: str, files: Collection[str]) -> Kind:
    """The kind of a model by its configuration, or, where that says nothing, by the names of its files.

    Unprocessable names a platform or backend that is not served; MissingWeights a folder without a model file.
    """
    chosen = [kind for kind in KINDS if kind.names & {platform, backend}]
    known = ", ".join(sorted(name for kind in KINDS for name in kind.names))
    for field, value in (("platform", platform), ("backend", backend)):
        if value and not any(value in kind.names for kind in chosen):
            raise Unprocessable(f"{field} {value!r} is not served; expected one of {known}", param=field)
    if len(chosen) > 1:
        raise Unprocessable(f"platform {platform!r} and backend {backend!r} do not belong together", param="backend")
    if not chosen:
        suffixes = {name[name.rfind(".") :] for name in files}
        chosen = [kind for kind in KINDS if suffixes & {name[name.rfind(".") :] for name in kind.files}]
    if len(chosen) != 1:
        expected = ", ".join(name for kind in KINDS for name in kind.files)
        raise MissingWeights(f"expected exactly one of {expected}, found {', '.join(sorted(files)) or 'no file'}")
    return chosen[0]


def file_of(kind: Kind, files: Collection[str]) -> str:
    """Which of the files is the model's, where no configuration names it."""
    return next((name for name in kind.files if name in files), kind.files[0])


def backend_for(platform: str, backend: str, filename: str) -> Backend:
    """The backend for a model file. PlatformError, raised when a model is opened, names an extra that is missing."""
    return kind_of(platform, backend, [filename]).backend()
