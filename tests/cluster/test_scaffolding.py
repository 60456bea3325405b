"""func's host builder, step by step, and the image's command: what `func deploy` makes of a folder answers.

func writes its scaffolding into ``.func/builds/by-hash/HASH`` of the function, with a link ``f`` back to the function's
folder; makes a virtual environment there; installs the scaffolding with ``--target lib``; and the image runs
``python service/main.py`` with ``PYTHONPATH=lib``.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from programs.hosting import Running
from tables import ROOT

from relight.cli.encoder import push_encoder
from relight.cluster.wheel import lay_wheel

SERVICE = """
[project]
name = "service"
version = "0.1.0"
requires-python = ">=3.9"
dependencies = ["func-python", "function @ {root:uri}/f"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.metadata]
allow-direct-references = true
"""
# As func's: `new` is found by its name, and handed to the middleware.
MAIN = """
from func_python.http import serve
from function import new

if __name__ == "__main__":
    serve(new)
"""


def copy(names: list[str], to: Path) -> Path:
    """A copy of what is tracked below some paths of the project, as a checkout has it."""
    listed = subprocess.run(["git", "ls-files", "-z", *names], cwd=ROOT, capture_output=True, text=True, check=False)
    assert listed.returncode == 0, listed.stderr
    for name in filter(None, listed.stdout.split("\0")):
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    return to


def build(folder: Path) -> Path:
    """What the host builder does; the folder that the image holds besides the function."""
    made = folder / ".func" / "builds" / "by-hash" / "0123456789abcdef"
    (made / "service").mkdir(parents=True)
    (made / "f").symlink_to(os.path.relpath(folder, made), target_is_directory=True)
    (made / "pyproject.toml").write_text(SERVICE)
    (made / "service" / "__init__.py").touch()
    (made / "service" / "main.py").write_text(MAIN)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ["PIP_NO_COMPILE"] = "1"  # half of the time it would take, and no other result
    for command in (
        [sys.executable, "-m", "venv", ".venv"],
        [str(made / ".venv" / "bin" / "pip"), "install", "--quiet", ".", "--target", "lib"],
    ):
        done = subprocess.run(command, cwd=made, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return made


@contextmanager
def run(folder: Path, made: Path, **env: str) -> Iterator[Running]:
    """The image's command, in the image's working folder, ready to be called; stopped by SIGTERM."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]  # func's server binds for itself
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(made / "lib"), "LISTEN_ADDRESS": f"127.0.0.1:{port}"}
    log = folder / "service.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(made / ".venv" / "bin" / "python"), str(made / "service" / "main.py")],
            cwd=folder,
            env=environ | {"K_SERVICE": "own", "RELIGHT_NAMESPACE": "tests", **env},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    program = Running(process, port, log)
    try:
        yield program.ready()
        assert program.stop() == 0, log.read_text()
    finally:
        program.kill()


def event(kind: str) -> dict[str, str]:
    return {
        "ce-specversion": "1.0",
        "ce-id": "1",
        "ce-source": "/tests",
        "ce-type": kind,
        "content-type": "application/json",
    }


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The function ``split`` as func builds it from a checkout, with relight's wheel."""
    folder = copy(["functions/split"], tmp_path_factory.mktemp("split")) / "functions" / "split"
    wheel = lay_wheel(folder)
    assert wheel.name in (folder / "pyproject.toml").read_text(), "pyproject.toml names another version"
    return folder, build(folder)


def test_a_step_as_func_builds_it(split: tuple[Path, Path]) -> None:
    with run(*split) as program:
        document = json.loads((ROOT / "events/samples/dev.relight.document.v1.json").read_text())["data"]
        status, headers, body = program.post("/", document, **event("dev.relight.document.v1"))
        assert status == 200, body
        assert (headers["ce-type"], headers["ce-source"]) == ("dev.relight.chunks.v1", "/tests/own")
        assert headers["ce-id"] != "1"
        assert [chunk["text"] for chunk in json.loads(body)["chunks"]] == [document["text"]]
        assert program.request("GET", "/health/liveness")[0] == 200


@pytest.mark.skipif(
    not os.environ.get("RELIGHT_TESTS_REQUIRE_SERVERS"), reason="installs for a minute: .ci/run does it"
)
def test_the_front_door_as_func_builds_it(tmp_path: Path) -> None:
    """The root of the project, whose relight is the folder beside it: V2 and events."""
    names = ["func.yaml", "pyproject.toml", ".funcignore", "functions/model", "platform"]
    root = copy(names, tmp_path / "root")
    made = build(root)
    repository = (tmp_path / "models").as_uri()
    push_encoder(repository, lambda text: None)
    tokens = [101, 2000, 2022, 102]
    request = {
        "inputs": [
            {"name": name, "datatype": "INT64", "shape": [1, 4], "data": data}
            for name, data in (("input_ids", tokens), ("attention_mask", [1] * 4), ("token_type_ids", [0] * 4))
        ]
    }
    env = {"RELIGHT_MODEL": "minilm", "RELIGHT_REPOSITORY": repository, "RELIGHT_CACHE": str(tmp_path / "cache")}
    with run(root, made, **env) as program:
        status, _, body = program.post("/v2/models/minilm/infer", request)
        assert (status, json.loads(body)["outputs"][0]["shape"]) == (200, [1, 4, 384])
        status, headers, body = program.post("/", request, **event("com.example.tokens"))
        assert (status, headers["ce-type"]) == (200, "com.example.tokens.response")
        assert json.loads(body)["outputs"][0]["shape"] == [1, 4, 384]
        assert program.status("/v2/models/minilm/ready") == 200
