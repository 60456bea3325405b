"""What this machine can run models with: libraries, processor, GPUs. For ``relight doctor``: nothing here raises."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

from relight.backends import cpus, gpus, onnxruntime
from relight.backends.placing import CUDA, TENSORRT
from relight.base.errors import PlatformError

State = Literal["ok", "missing", "problem", "not verified"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    topic: str
    name: str
    state: State
    detail: str


def findings() -> list[Finding]:
    """All that is known here without loading a model."""
    return [*_processor(), *_gpus(), *_onnxruntime(), *_torch(), *_tensorrt()]


def _processor() -> list[Finding]:
    quota = cpus.limit()
    allowed = len(os.sched_getaffinity(0))
    limit = f"its cgroup gives {quota:g}" if quota else "its cgroup sets no limit"
    detail = f"{os.cpu_count()} in the machine, {allowed} allowed, {limit}: {cpus.usable()} threads"
    return [
        Finding("processor", "processors", "ok", detail),
        Finding("processor", "instructions", "ok", f"{' '.join(cpus.features()) or 'unknown'} (kind {cpus.kind()})"),
    ]


def _gpus() -> list[Finding]:
    count = gpus.visible()
    program = shutil.which("nvidia-smi")
    if program is None:
        if count:
            return [
                Finding("gpu", "NVIDIA", "problem", f"{count} device files, but no nvidia-smi: is the driver there?")
            ]
        return [Finding("gpu", "NVIDIA", "missing", "no device files and no nvidia-smi")]
    query = [program, "--query-gpu=index,name,memory.total,driver_version,mig.mode.current", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=gpus.ANSWER, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return [Finding("gpu", "NVIDIA", "problem", f"nvidia-smi does not answer: {error}")]
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    return [Finding("gpu", "NVIDIA", "ok", f"{line} (index, name, memory, driver, MIG)") for line in lines] or [
        Finding("gpu", "NVIDIA", "missing", "nvidia-smi lists none")
    ]


def _onnxruntime() -> list[Finding]:
    try:
        runtime = onnxruntime.library()
    except PlatformError as error:
        return [Finding("models", "ONNX Runtime", "missing", error.message)]
    available = runtime.get_available_providers()
    found = [Finding("models", "ONNX Runtime", "ok", f"{runtime.__version__}, with {', '.join(available)}")]
    for provider in (CUDA, TENSORRT):
        if provider in available:
            why = "it is built in; no model was run on it by this command" if gpus.visible() else "no GPU is visible"
        else:
            why = "this build does not have it: install relight[onnx-gpu] in place of relight[onnx]"
        found.append(Finding("models", provider, "not verified", why))
    return found


def _torch() -> list[Finding]:
    try:
        torch = import_module("torch")
    except ImportError as error:
        return [Finding("models", "PyTorch", "missing", f"{error}; install relight[torch]")]
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    seen = f"{torch.cuda.device_count()} GPUs" if torch.cuda.is_available() else "sees no GPU"
    return [Finding("models", "PyTorch", "ok", f"{torch.__version__}, built with {cuda}, {seen}")]


def _tensorrt() -> list[Finding]:
    try:
        version = import_module("tensorrt").__version__
    except ImportError as error:
        return [Finding("models", "TensorRT", "missing", f"{error}; model.plan files need relight[tensorrt]")]
    return [Finding("models", "TensorRT", "not verified", f"{version}; no plan was run by this command")]
