"""TensorRT: engines as ``model.plan`` files. A plan is good for one kind of GPU and one version of TensorRT.

Device memory and the stream are PyTorch's, so that both libraries share one pool of the GPU's memory.

This file was written against TensorRT's published interface (version 10 and later) and could not be run where relight
is tested: docs/limits.md lists it, and ``relight doctor`` says so.
"""

from __future__ import annotations

import threading
from importlib import import_module
from pathlib import Path
from typing import Any, Unpack

from relight.backends import gpus
from relight.backends.base import Placement
from relight.backends.opening import Opening, Options
from relight.backends.placing import on_tensorrt
from relight.backends.torch_calls import from_tensor, to_tensor
from relight.base.errors import CorruptWeights, Failed, PlatformError
from relight.wire.tensors import Array, TensorSpec

_DATATYPES = {
    "BOOL": "BOOL",
    "INT8": "INT8",
    "UINT8": "UINT8",
    "INT32": "INT32",
    "INT64": "INT64",
    "HALF": "FP16",
    "BF16": "BF16",
    "FLOAT": "FP32",
}
"""TensorRT's names of its data types, to the protocol's. It has more (FP8, INT4), which no input or output may be."""
_TORCH = {
    "BOOL": "bool",
    "INT8": "int8",
    "UINT8": "uint8",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "BF16": "bfloat16",
    "FP32": "float32",
}


class TensorRT:
    """The backend. Its libraries are imported when the first model is opened."""

    def open(self, path: Path, **options: Unpack[Options]) -> TensorRTSession:
        """Load an engine onto a GPU. ``threads``, ``cache`` and ``digest`` mean nothing to it."""
        tensorrt, torch = libraries()
        given = Opening(path, **options)
        place = given.placed(on_tensorrt(given.declared, gpus.visible()))
        torch.cuda.set_device(place.device)
        engine = tensorrt.Runtime(tensorrt.Logger(tensorrt.Logger.WARNING)).deserialize_cuda_engine(path.read_bytes())
        if engine is None:
            raise CorruptWeights(
                f"TensorRT {tensorrt.__version__} cannot use {path}: a plan is good for the version and the kind of "
                "GPU that it was built with; its own lines above say more"
            )
        return TensorRTSession(torch, tensorrt, engine, place, path)


class TensorRTSession:
    """An engine with one execution context: runs take turns, as they would on the GPU's one stream anyway."""

    def __init__(self, torch: Any, tensorrt: Any, engine: Any, placement: Placement, path: Path) -> None:
        names = [engine.get_tensor_name(at) for at in range(engine.num_io_tensors)]
        incoming = {name: engine.get_tensor_mode(name) == tensorrt.TensorIOMode.INPUT for name in names}
        self.inputs = [_spec(engine, name, path) for name in names if incoming[name]]
        self.outputs = [_spec(engine, name, path) for name in names if not incoming[name]]
        self.placement = placement
        self._torch = torch
        self._path = path
        self._context = engine.create_execution_context()
        self._stream = torch.cuda.Stream(device=placement.device)
        self._turn = threading.Lock()

    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        torch, context = self._torch, self._context
        with self._turn, torch.cuda.stream(self._stream):
            # Held until the stream is done: the engine knows their addresses only.
            given = {
                spec.name: to_tensor(torch, inputs[spec.name], spec.datatype, self.placement.device).contiguous()
                for spec in self.inputs
            }
            for name, tensor in given.items():
                if not context.set_input_shape(name, tuple(tensor.shape)):
                    raise Failed(f"{self._path}: {name!r} of shape {list(tensor.shape)} is outside the plan's profile")
                context.set_tensor_address(name, tensor.data_ptr())
            results = {}
            for spec in self.outputs:
                shape = tuple(context.get_tensor_shape(spec.name))
                dtype = getattr(torch, _TORCH[spec.datatype])
                results[spec.name] = torch.empty(shape, dtype=dtype, device=self.placement.device)
                context.set_tensor_address(spec.name, results[spec.name].data_ptr())
            if not context.execute_async_v3(self._stream.cuda_stream):
                raise Failed(f"{self._path}: TensorRT could not run the engine; its own lines say why")
            self._stream.synchronize()
        return {name: from_tensor(torch, tensor) for name, tensor in results.items()}

    def settle(self) -> None:
        """Nothing goes on behind the first result."""

    def close(self) -> None:
        self._context = None


def libraries() -> tuple[Any, Any]:
    """(TensorRT's module, PyTorch's). PlatformError names the extra."""
    try:
        return import_module("tensorrt"), import_module("torch")
    except ImportError as error:
        raise PlatformError(
            f"TensorRT is not installed here ({error}); on a machine with an NVIDIA GPU install relight[tensorrt]"
        ) from None


def _spec(engine: Any, name: str, path: Path) -> TensorSpec:
    kind = engine.get_tensor_dtype(name).name
    if kind not in _DATATYPES:
        raise CorruptWeights(f"{path}: {name!r} is of {kind}, which the Open Inference Protocol does not have")
    return TensorSpec(name, _DATATYPES[kind], tuple(engine.get_tensor_shape(name)))
