"""Where a model runs: a decision of what was asked for, what the library was built with, and which GPUs are there."""

from __future__ import annotations

from collections.abc import Sequence

from relight.backends.base import Declared, Placement
from relight.base.errors import PlatformError

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"


def on_onnxruntime(declared: Declared, available: Sequence[str], gpus: int, threads: int) -> Placement:
    """The execution provider of ONNX Runtime to use first. PlatformError says what a GPU instance lacks.

    TensorRT builds an engine when a model is first opened, which takes minutes: it is used where it is asked for by
    name, never because it happens to be there.
    """
    if declared.kind == "cpu":
        return Placement("cpu", CPU, threads, "instance_group asks for KIND_CPU")
    lacks = None
    if CUDA not in available:
        lacks = f"this build of ONNX Runtime has {', '.join(available)} (a GPU needs relight[onnx-gpu] in its place)"
    elif gpus == 0:
        lacks = "no GPU is visible here"
    if lacks:
        return _without_gpu(declared, CPU, threads, lacks)
    device, reason = _gpu(declared, gpus)
    if "tensorrt" not in declared.accelerators:
        return Placement(device, CUDA, threads, reason)
    if TENSORRT in available:
        return Placement(device, TENSORRT, threads, f"{reason}, with the accelerator tensorrt")
    return Placement(device, CUDA, threads, f"{reason}; this build of ONNX Runtime has no {TENSORRT}")


def on_torch(declared: Declared, cuda: bool, gpus: int, threads: int) -> Placement:
    """The device of PyTorch to use; ``cuda``: what ``torch.cuda.is_available()`` says, ``gpus`` how many it has."""
    if declared.kind == "cpu":
        return Placement("cpu", "torch", threads, "instance_group asks for KIND_CPU")
    if not cuda or gpus == 0:
        return _without_gpu(declared, "torch", threads, "PyTorch sees no GPU here, or was built without CUDA")
    device, reason = _gpu(declared, gpus)
    return Placement(device, "torch", threads, reason)


def on_tensorrt(declared: Declared, gpus: int) -> Placement:
    """The GPU to use: a plan runs nowhere else."""
    if declared.kind == "cpu":
        raise PlatformError("instance_group asks for KIND_CPU, and a TensorRT plan runs on a GPU only")
    if gpus == 0:
        raise PlatformError("a TensorRT plan needs a GPU, and none is visible here")
    device, reason = _gpu(declared, gpus)
    return Placement(device, "tensorrt", 0, reason)


def _without_gpu(declared: Declared, engine: str, threads: int, lacks: str) -> Placement:
    if declared.kind == "gpu":
        raise PlatformError(f"instance_group asks for KIND_GPU, and {lacks}")
    return Placement("cpu", engine, threads, lacks)


def _gpu(declared: Declared, gpus: int) -> tuple[str, str]:
    number = declared.gpus[0] if declared.gpus else 0
    if not 0 <= number < gpus:
        raise PlatformError(f"instance_group asks for GPU {number}, and {gpus} are visible here, numbered from 0")
    asked = "instance_group asks for KIND_GPU" if declared.kind == "gpu" else "a GPU is visible"
    return f"cuda:{number}", asked
