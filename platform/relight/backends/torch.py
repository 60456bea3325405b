"""PyTorch: TorchScript (``model.pt``), exported programs (``model.pt2``) and weights (``model.safetensors``).

An exported program knows the names, types and shapes of its inputs; the others are told by config.pbtxt. TorchScript's
outputs have no names, nor have those of an exported program that returns no dictionary: they are ``OUTPUT__0`` and so
on, as Triton has it. Weights need the class they belong to, and it comes from the function's own code: config.pbtxt
says ``parameters { key: "class" value { string_value: "net:Encoder" } }``, which is looked for in the package
``function``. Pickles are refused by name (``archives``).
"""

from __future__ import annotations

import logging
import threading
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any, Unpack

from relight.backends import archives
from relight.backends.base import Declared, Placement
from relight.backends.modules import build, reading
from relight.backends.opening import Opening, Options
from relight.backends.placing import on_torch
from relight.backends.torch_calls import Call, described, from_signature, from_tensor, to_tensor
from relight.base.errors import PlatformError
from relight.wire.tensors import Array

log = logging.getLogger("relight.torch")

_DEPRECATIONS = (r"`torch\.jit\.\w+` is deprecated", r"torch\.ao\.quantization is deprecated")
"""PyTorch 2.13 says these of what it still has no other way for: files in TorchScript, and their INT8."""


class Torch:
    """The backend. Its library is imported when the first model is opened."""

    def open(self, path: Path, **options: Unpack[Options]) -> TorchSession:
        """Load a model for inference; nothing is kept in ``cache``."""
        torch = library()
        given = Opening(path, **options)
        cuda, count = torch.cuda.is_available(), torch.cuda.device_count()
        place = given.placed(on_torch(given.declared, cuda, count, given.run_threads))
        # One number for the whole process: PyTorch has one pool for all models.
        torch.set_num_threads(place.threads)
        module, call = _read(torch, path, given.declared, place.device)
        return TorchSession(torch, module, call, place, path)


class TorchSession:
    """A module with its weights, ready for inference."""

    def __init__(self, torch: Any, module: Any, call: Call, placement: Placement, path: Path) -> None:
        self.inputs = call.inputs
        self.outputs = call.outputs
        self.placement = placement
        self._torch = torch
        self._module = module
        self._call = call
        self._path = path
        # A module on a GPU shares one stream; on the processor runs may overlap.
        self._turn = threading.Lock() if placement.device != "cpu" else None

    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        if self._turn is None:
            return self._run(inputs)
        with self._turn:
            return self._run(inputs)

    def settle(self) -> None:
        """Nothing goes on behind the first result."""

    def close(self) -> None:
        self._module = None

    def _run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        torch = self._torch
        with torch.inference_mode():
            arguments = {
                spec.name: to_tensor(torch, inputs[spec.name], spec.datatype, self.placement.device)
                for spec in self.inputs
            }
            results = self._call.collect(self._call.invoke(self._module, arguments), str(self._path))
            return {name: from_tensor(torch, tensor) for name, tensor in results.items()}


def _read(torch: Any, path: Path, declared: Declared, device: str) -> tuple[Any, Call]:
    if path.suffix == ".safetensors":
        module = build(torch, path, declared.parameters, device)
        return module, described(declared, str(path), from_signature(module.forward))
    if archives.is_torchscript(path):
        with reading(path):
            module = torch.jit.load(str(path), map_location=device).eval()
        arguments = [argument.name for argument in module.forward.schema.arguments[1:]]
        return module, described(declared, str(path), arguments)
    archives.check_exported(path)
    _check_samples(torch, path)
    with reading(path):
        program = torch.export.load(str(path))
    if device != "cpu":
        program = import_module("torch.export.passes").move_to_device_pass(program, device)
    return program.module(), Call.of_program(torch, program, declared)


def _check_samples(torch: Any, path: Path) -> None:
    """``torch.export.load`` reads them as any pickle where they are more than tensors."""
    import io
    import pickle

    samples = archives.sample_inputs(path)
    if not samples:
        return
    try:
        torch.load(io.BytesIO(samples), weights_only=True)
    except pickle.UnpicklingError as error:
        raise archives.refuse(path, "its sample inputs are more than tensors") from error


def library() -> Any:
    """PyTorch's module, with the warnings off that say what it means to take away one day."""
    try:
        torch = import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise PlatformError("PyTorch is not installed here; install relight[torch]") from None
    for message in _DEPRECATIONS:
        warnings.filterwarnings("ignore", message=message, category=DeprecationWarning)
    return torch
