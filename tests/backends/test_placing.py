"""Where a model runs: tables over what is asked for, what the library has, which GPUs are there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from relight.backends import gpus
from relight.backends.base import Declared, Placement
from relight.backends.onnxruntime import OnnxRuntime
from relight.backends.placing import CPU, CUDA, TENSORRT, on_onnxruntime, on_tensorrt, on_torch
from relight.backends.tensorrt import TensorRT
from relight.base.errors import PlatformError

DATASETS = Path(onnxruntime.__file__).parent / "datasets"
PLAIN, WITH_CUDA, WITH_ALL = ["AzureExecutionProvider", CPU], [CUDA, CPU], [TENSORRT, CUDA, CPU]

CASES: dict[str, tuple[Declared, list[str], int, str, str, str]] = {
    # declared, built with, GPUs: device, engine, and what the reason says
    "auto, a plain build": (Declared(), PLAIN, 1, "cpu", CPU, "this build of ONNX Runtime has Azure"),
    "auto, no GPU": (Declared(), WITH_CUDA, 0, "cpu", CPU, "no GPU is visible here"),
    "auto, a GPU": (Declared(), WITH_CUDA, 1, "cuda:0", CUDA, "a GPU is visible"),
    "the model's business": (Declared(kind="model"), WITH_CUDA, 1, "cuda:0", CUDA, "a GPU is visible"),
    "cpu, though there is a GPU": (Declared(kind="cpu"), WITH_ALL, 1, "cpu", CPU, "asks for KIND_CPU"),
    "gpu": (Declared(kind="gpu"), WITH_CUDA, 2, "cuda:0", CUDA, "asks for KIND_GPU"),
    "gpu, the second": (Declared(kind="gpu", gpus=(1,)), WITH_CUDA, 2, "cuda:1", CUDA, "asks for KIND_GPU"),
    "TensorRT is there, nobody asked": (Declared(), WITH_ALL, 1, "cuda:0", CUDA, "a GPU is visible"),
    "TensorRT": (Declared(accelerators=("tensorrt",)), WITH_ALL, 1, "cuda:0", TENSORRT, "accelerator tensorrt"),
    "TensorRT, not built in": (
        Declared(accelerators=("tensorrt",)), WITH_CUDA, 1, "cuda:0", CUDA, f"has no {TENSORRT}",
    ),
    "TensorRT on no GPU": (Declared(accelerators=("tensorrt",)), WITH_ALL, 0, "cpu", CPU, "no GPU is visible"),
}  # fmt: skip


@pytest.mark.parametrize(("declared", "built", "count", "device", "engine", "reason"), CASES.values(), ids=CASES)
def test_the_execution_provider(
    declared: Declared, built: list[str], count: int, device: str, engine: str, reason: str
) -> None:
    place = on_onnxruntime(declared, built, count, 3)
    assert (place.device, place.engine, place.threads) == (device, engine, 3)
    assert reason in place.reason


REFUSED: dict[str, tuple[Any, str]] = {
    "gpu, a plain build": (
        lambda: on_onnxruntime(Declared(kind="gpu"), PLAIN, 1, 1),
        r"KIND_GPU, and this build of ONNX Runtime has Azure.*relight\[onnx-gpu\]",
    ),
    "gpu, none there": (lambda: on_onnxruntime(Declared(kind="gpu"), WITH_CUDA, 0, 1), "KIND_GPU, and no GPU is"),
    "a GPU of another machine": (
        lambda: on_onnxruntime(Declared(kind="gpu", gpus=(3,)), WITH_CUDA, 2, 1),
        "asks for GPU 3, and 2 are visible here",
    ),
    "torch, none there": (lambda: on_torch(Declared(kind="gpu"), False, 0, 1), "KIND_GPU, and PyTorch sees no GPU"),
    "a plan on the processor": (lambda: on_tensorrt(Declared(kind="cpu"), 1), "runs on a GPU only"),
    "a plan, no GPU": (lambda: on_tensorrt(Declared(), 0), "needs a GPU, and none is visible"),
}


@pytest.mark.parametrize(("place", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_placed(place: Any, sentence: str) -> None:
    with pytest.raises(PlatformError, match=sentence):
        place()


def test_pytorch_and_tensorrt_are_placed() -> None:
    assert on_torch(Declared(), True, 1, 2) == Placement("cuda:0", "torch", 2, "a GPU is visible")
    assert on_torch(Declared(kind="cpu"), True, 1, 2).device == "cpu"
    assert on_torch(Declared(), False, 0, 2).device == "cpu"
    assert on_tensorrt(Declared(gpus=(1,)), 2).device == "cuda:1"


VISIBLE = {
    "none": ([], {}, 0),
    "two": (["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"], {}, 2),
    "hidden": (["nvidia0", "nvidiactl"], {"CUDA_VISIBLE_DEVICES": ""}, 0),
    "hidden by -1": (["nvidia0"], {"CUDA_VISIBLE_DEVICES": "-1"}, 0),
    "one of two": (["nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": "1"}, 1),
    "up to an unknown one": (["nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": "0,7,1"}, 1),
    "a slice": (["nvidia0"], {"CUDA_VISIBLE_DEVICES": "MIG-1c2f"}, 1),
    "named, but none is there": ([], {"CUDA_VISIBLE_DEVICES": "0"}, 0),
}


@pytest.mark.parametrize(("files", "environ", "want"), VISIBLE.values(), ids=VISIBLE)
def test_visible_gpus(files: list[str], environ: dict[str, str], want: int, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).touch()
    assert gpus.visible(environ, tmp_path) == want
    assert gpus.visible({}, tmp_path / "nowhere") == 0


def test_onnxruntime_says_where_a_model_runs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "relight.backends"):
        session = OnnxRuntime().open(DATASETS / "mul_1.onnx", threads=1, declared=Declared(kind="cpu"))
    assert session.placement.describe() == {
        "device": "cpu", "engine": CPU, "threads": "1", "reason": "instance_group asks for KIND_CPU",
    }  # fmt: skip
    assert "model.placed" in caplog.text
    assert CPU in caplog.text
    session.close()


def test_a_gpu_instance_is_not_served_by_the_processor() -> None:
    if CUDA in onnxruntime.get_available_providers() and gpus.visible():
        pytest.skip("there is a GPU here, and a build that uses it")
    with pytest.raises(PlatformError, match="asks for KIND_GPU, and"):
        OnnxRuntime().open(DATASETS / "mul_1.onnx", declared=Declared(kind="gpu"))


def test_a_plan_without_tensorrt_names_the_extra(tmp_path: Path) -> None:
    try:
        import tensorrt  # type: ignore[import-not-found,unused-ignore] # noqa: F401
    except ImportError:
        pass
    else:
        pytest.skip("TensorRT is installed here")
    with pytest.raises(PlatformError, match=r"TensorRT is not installed here .*install relight\[tensorrt\]"):
        TensorRT().open(tmp_path / "model.plan")


OPEN = """
import sys
from pathlib import Path
from relight.backends.onnxruntime import OnnxRuntime
OnnxRuntime().open(Path(sys.argv[1])).close()
"""


@pytest.mark.parametrize("through", ["backend", "bare"])
def test_telemetry_is_off_before_the_first_import(through: str, tmp_path: Path) -> None:
    """Bare, ONNX Runtime leaves a database in the user's home; through the backend, nothing."""
    # It keeps quiet by itself where CI says what it is.
    environ = {name: value for name, value in os.environ.items() if name not in ("ORT_DISABLE_TELEMETRY", "CI")}
    environ |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    code = OPEN if through == "backend" else "import onnxruntime"
    subprocess.run([sys.executable, "-c", code, str(DATASETS / "mul_1.onnx")], env=environ, check=True, timeout=60)
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    if through == "backend":
        assert left == []
    else:
        assert "onnxruntime.db" in left, "this release of ONNX Runtime no longer writes: the switch may go"


USED = {
    "one GPU": ("echo 512", 512 * 2**20),
    "two": ("printf '512\\n1\\n'", 513 * 2**20),
    "no numbers": ("echo '[N/A]'", "does not tell"),
    "a driver that fails": ("exit 9", "does not tell"),
}


@pytest.mark.parametrize(("script", "want"), USED.values(), ids=USED)
def test_memory_of_gpus(script: str, want: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(gpus, "visible", lambda: 1)
    if isinstance(want, int):
        assert gpus.used() == want
    else:
        with pytest.raises(PlatformError, match=want):
            gpus.used()


def test_without_a_gpu_its_driver_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "visible", lambda: 0)
    monkeypatch.setenv("PATH", "")
    assert gpus.used() is None
