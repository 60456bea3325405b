"""config.pbtxt and the backends: what it declares arrives, and where a model runs is told."""

from __future__ import annotations

import json
import urllib.request
import warnings
from pathlib import Path

import numpy as np
import pytest
from needing import need
from runtime.serving import served

from relight import sdk
from relight.backends.base import Declared
from relight.backends.declaring import of_config
from relight.cli.main import main
from relight.store.repository import Repository
from relight.wire import modelconfig_text
from relight.wire.tensors import TensorSpec

ROW = np.linspace(-1, 1, 16, dtype=np.float32)
CONFIG = b"""
name: "net"
backend: "pytorch"
max_batch_size: 8
input { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 4 ] }
instance_group { kind: KIND_CPU }
optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }
parameters { key: "class" value { string_value: "net:Net" } }
model_warmup {
  name: "real"
  batch_size: 1
  inputs { key: "INPUT__0" value { data_type: TYPE_FP32 dims: [ 16 ] input_data_file: "row" } }
}
"""


def test_what_a_configuration_declares() -> None:
    decoded = modelconfig_text.decode(CONFIG, "net")
    assert decoded.warnings == ()
    assert of_config(decoded.config) == Declared(
        [TensorSpec("INPUT__0", "FP32", (-1, 16))],
        [TensorSpec("OUTPUT__0", "FP32", (-1, 4))],
        kind="cpu",
        accelerators=("tensorrt",),
        parameters={"class": "net:Net"},
    )


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """With a TorchScript model and its configuration."""
    torch = need("torch", "torch")
    (folder := tmp_path / "net").mkdir()
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.trace(torch.nn.Linear(16, 4).eval(), (torch.zeros(1, 16),)).save(str(folder / "model.pt"))
    (folder / "config.pbtxt").write_bytes(CONFIG)
    monkeypatch.setenv("RELIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RELIGHT_REPOSITORY", (tmp_path / "models").as_uri())
    there = Repository.open((tmp_path / "models").as_uri())
    there.push(folder, "net")
    there.objects.put("net/warmup/row", [ROW.tobytes()])
    return there


def test_torchscript_is_optimised_on_the_warm_ups_of_its_configuration(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["model", "optimize", "net", "--int8", "--seconds", "0"])
    printed = capsys.readouterr()
    assert not ended.value.code, printed.err
    assert "answers to 1 samples" in printed.out
    assert repository.versions("net") == [1, 2]


def test_a_torchscript_model_is_served_and_says_where_it_runs(repository: Repository, tmp_path: Path) -> None:
    environ = {"RELIGHT_MODEL": "net", "RELIGHT_REPOSITORY": repository.uri, "RELIGHT_CACHE": str(tmp_path / "cache")}
    with served(sdk.RepositoryModel(), **environ) as here:
        base = f"http://127.0.0.1:{here.port}/v2/models/net"
        with urllib.request.urlopen(base, timeout=10) as answer:
            metadata = json.load(answer)
        assert metadata["platform"] == "pytorch_libtorch"
        assert metadata["parameters"]["device"] == "cpu"
        assert "KIND_CPU" in metadata["parameters"]["reason"]
        assert metadata["inputs"] == [{"name": "INPUT__0", "datatype": "FP32", "shape": [-1, 16]}]
        body = {"inputs": [{"name": "INPUT__0", "datatype": "FP32", "shape": [1, 16], "data": ROW.tolist()}]}
        request = urllib.request.Request(f"{base}/infer", json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            outputs = json.load(answer)["outputs"]
    assert [(output["name"], output["shape"]) for output in outputs] == [("OUTPUT__0", [1, 4])]
