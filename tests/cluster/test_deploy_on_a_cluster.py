"""Deploying to a cluster that runs images: with func, which is a program of its own here, and without.

The API is local mode's, but for its version, by which a client knows that it runs folders.
"""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tables import load

from relight.cluster.client import Client
from relight.local.kube import discovery, kinds

Run = Callable[..., tuple[int, str, str]]
SERVING = "serving.knative.dev/v1"
DIGEST = "sha256:" + "0" * 64

FUNC = """#!{python}
import json, os, subprocess, sys
seen = {{"argv": sys.argv[1:], "kubeconfig": os.environ.get("KUBECONFIG")}}
folder = sys.argv[sys.argv.index("--path") + 1]
seen["wheels"] = os.listdir(folder + "/wheels") if os.path.isdir(folder + "/wheels") else []
open({record!r}, "w").write(json.dumps(seen))
if {fails!r}:
    print("Error: registry refused the push", file=sys.stderr)
    sys.exit(1)
print("Building function image")
name = os.path.basename(folder)
service = {{
    "apiVersion": "serving.knative.dev/v1",
    "kind": "Service",
    "metadata": {{"name": name}},
    "spec": {{"template": {{"spec": {{"containers": [{{"image": "registry.example.com/" + name + "@{digest}"}}]}}}}}},
}}
subprocess.run([{kubectl!r}, "apply", "-f", "-"], input=json.dumps(service).encode(), check=True)
"""
GPU = """
spec:
  template:
    spec:
      containers:
        - resources:
            limits:
              nvidia.com/gpu: "1"
"""


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster runs images; on the path there is only what a test puts there."""
    monkeypatch.setitem(discovery.VERSION, "gitVersion", "v1.36.2")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def install_func(folder: Path, *, fails: bool = False) -> Path:
    """A program ``func`` on the path that deploys what it is told, and notes what that was."""
    record = folder / "func.json"
    program = folder / "bin" / "func"
    program.parent.mkdir(exist_ok=True)
    kubectl = str(Path(sys.executable).with_name("kubectl"))
    text = FUNC.format(python=sys.executable, record=str(record), fails=fails, digest=DIGEST, kubectl=kubectl)
    program.write_text(text)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return record


def container(client: Client, name: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(SERVING, "Service", name)["spec"]["template"]["spec"]["containers"][0]
    return found


def test_func_builds_and_relight_adds_the_rest(relight: Run, client: Client, api: Any, tmp_path: Path) -> None:
    record = install_func(tmp_path)
    relight("new", "step", "words")
    (tmp_path / "words" / "relight.yaml").write_text(GPU)
    code, out, err = relight("deploy", "words", "--registry", "registry.example.com", "--no-wait")
    assert code == 0, err
    seen = json.loads(record.read_text())
    folder = str(tmp_path / "words")
    assert seen["argv"] == ["deploy", "--path", folder, "--namespace", "default", "--registry", "registry.example.com"]
    assert seen["kubeconfig"] == str(api.kubeconfig)
    assert [name.partition("-")[0] for name in seen["wheels"]] == ["relight"], (
        "its pyproject.toml names relight's wheel"
    )
    flags = {flag["flag"] for flag in load("func_flags")["commands"]["func deploy"]}
    assert {word for word in seen["argv"] if word.startswith("-")} <= flags
    made = container(client, "words")
    assert made["image"] == f"registry.example.com/words@{DIGEST}"
    assert made["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert made["securityContext"]["runAsNonRoot"] is True
    assert out.splitlines()[0] == "words configured"


def test_what_func_says_when_it_fails_is_said(relight: Run, client: Client, tmp_path: Path) -> None:
    install_func(tmp_path, fails=True)
    relight("new", "step", "words")
    code, _, err = relight("deploy", "words", "--no-wait")
    assert (code, err.splitlines()[-1]) == (1, "error: func deploy failed: Error: registry refused the push")
    assert client.list(SERVING, "Service")["items"] == []


def test_an_image_that_is_there_needs_no_func(relight: Run, client: Client) -> None:
    relight("new", "model", "bert")
    image = f"registry.example.com/relight@{DIGEST}"
    code, _, err = relight("deploy", "bert", "--image", image, "--no-wait")
    assert code == 0, err
    made = container(client, "bert")
    env = {one["name"]: one["value"] for one in made["env"]}
    assert (made["image"], env["RELIGHT_FUNCTION"], env["RELIGHT_MODEL"]) == (image, "model", "bert")
    assert "is a folder of this machine" in err, "a cluster cannot read this machine's repository"


def test_neither_func_nor_an_image(relight: Run, client: Client) -> None:
    relight("new", "step", "words")
    code, _, err = relight("deploy", "words", "--no-wait")
    assert code == 1
    assert "install func" in err
    assert "--image" in err
    assert client.list(SERVING, "Service")["items"] == []


def test_local_mode_runs_the_folder_and_no_image(relight: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(discovery.VERSION, "gitVersion", "v1.36.2+relight")
    relight("new", "step", "words")
    code, _, err = relight("deploy", "words", "--image", "x/y", "--no-wait")
    assert (code, "local mode runs the folder itself" in err) == (7, True)


def test_a_model_larger_than_any_gpu_is_refused_with_the_numbers(
    relight: Run, client: Client, api: Any, tmp_path: Path
) -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "small", "labels": {"nvidia.com/gpu.memory": "1", "nvidia.com/gpu.product": "Toy"}},
        "status": {"allocatable": {"nvidia.com/gpu": "1"}},
    }
    kind = kinds.by_kind("v1", "Node")
    assert kind is not None
    api.create(kind, node)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "model.onnx").write_bytes(b"\0" * 2 * 2**20)
    assert relight("model", "push", "weights", "bert")[0] == 0
    relight("new", "model", "bert")
    (tmp_path / "bert" / "relight.yaml").write_text(GPU)
    code, _, err = relight("deploy", "bert", "--image", "registry.example.com/relight:1", "--no-wait")
    assert code == 7
    assert "no GPU of this cluster holds them: the largest nvidia.com/gpu is Toy on node small" in err
    assert client.list(SERVING, "Service")["items"] == []
