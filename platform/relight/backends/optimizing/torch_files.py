"""TorchScript files made smaller: dynamic INT8."""

from __future__ import annotations

import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from relight.backends import archives
from relight.backends.base import Declared
from relight.backends.optimizing.samples import Sample
from relight.backends.torch import library
from relight.backends.torch_calls import described, from_tensor, to_tensor
from relight.base.errors import Unprocessable
from relight.wire.tensors import ANY, TensorSpec, datatype_of

MODEL = "model.pt"


def int8(source: Path, target: Path) -> None:
    """Weights of linear layers as INT8, activations quantised as they come."""
    torch = library()
    if source.suffix != ".pt" or not archives.is_torchscript(source):
        raise Unprocessable(
            f"{source.name}: PyTorch {torch.__version__} makes INT8 of TorchScript (model.pt) only; for an exported "
            "program it takes torchao. Export the model to ONNX, or to TorchScript, and optimise that"
        )
    quantization = import_module("torch.ao.quantization")
    module = torch.jit.load(str(source), map_location="cpu").eval()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"The \.grad attribute of a Tensor that is not a leaf")
        made = quantization.quantize_dynamic_jit(module, {"": quantization.default_dynamic_qconfig})
    if not any(str(node.kind()).startswith("quantized::") for node in made.inlined_graph.nodes()):
        raise Unprocessable(f"there is nothing to quantise in {source.name}: it has no linear layer of FP32 weights")
    made.save(str(target / MODEL))


def declared_by(source: Path, sample: Sample) -> Declared:
    """What goes in and out of a TorchScript file, seen by running it once: for a model without a configuration."""
    torch = library()
    if not archives.is_torchscript(source):
        raise Unprocessable(f"{source.name} is no TorchScript")
    module = torch.jit.load(str(source), map_location="cpu").eval()
    inputs = [_spec(name, array.shape, array.dtype) for name, array in sample.items()]
    call = described(
        Declared(inputs, inputs), str(source), [argument.name for argument in module.forward.schema.arguments[1:]]
    )
    with torch.inference_mode():
        result = call.invoke(
            module, {name: to_tensor(torch, sample[name], datatype_of(sample[name].dtype), "cpu") for name in sample}
        )
    results = result if isinstance(result, tuple | list) else [result]
    named = result if isinstance(result, dict) else {f"OUTPUT__{at}": tensor for at, tensor in enumerate(results)}
    outputs = [_spec(str(name), tensor.shape, from_tensor(torch, tensor).dtype) for name, tensor in named.items()]
    return Declared(inputs, outputs)


def _spec(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> TensorSpec:
    return TensorSpec(name, datatype_of(dtype), [ANY] * len(shape))
