"""A function's process on a model from S3: its second start on a node needs nobody for its first answer."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from programs.hosting import PROGRAMS, Running, running

from relight.base.errors import BadInput
from relight.runtime.context import FunctionSettings
from relight.store.cache import NodeCache
from relight.store.repository import Repository
from relight.store.s3 import S3

MODEL = Path(onnxruntime.__file__).parent / "datasets" / "mul_1.onnx"


def answer(program: Running) -> tuple[int, bytes]:
    tensor = {"name": "X", "datatype": "FP32", "shape": [3, 2], "data": [1, 2, 3, 4, 5, 6]}
    status, _, body = program.post("/v2/models/mul/infer", {"inputs": [tensor]})
    return status, body


def test_a_second_start_answers_with_the_server_gone(s3: S3, tmp_path: Path) -> None:
    Repository(s3).push(MODEL, "mul")
    env: dict[str, Any] = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    env |= {
        "PYTHONPATH": os.pathsep.join([str(PROGRAMS), os.environ.get("PYTHONPATH", "")]),
        "RELIGHT_MODEL": "mul",
        "RELIGHT_REPOSITORY": s3.uri,
        "RELIGHT_CACHE": str(tmp_path / "cache"),
        "RELIGHT_CACHE_LIMIT": "1Gi",
    }
    with running("replica", "onnx", tmp_path, **env) as first:
        expected = answer(first.ready())
        assert expected[0] == 200
    with socket.create_server(("127.0.0.1", 0)) as listener:
        env["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with running("replica", "onnx", tmp_path, **env) as second:
        assert answer(second.ready()) == expected
    assert "hit=True" in second.log.read_text()
    # The optimised graph lies with the files, so that it counts and goes with them.
    (entry,) = NodeCache(tmp_path / "cache").entries()
    assert entry.names == ("mul/1",)
    assert not (tmp_path / "cache" / "graphs").exists()


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"RELIGHT_CACHE_LIMIT": "much"}, "RELIGHT_CACHE_LIMIT: expected a quantity of bytes such as 20Gi"),
        ({"RELIGHT_CACHE_LIMIT": "-1Gi"}, "RELIGHT_CACHE_LIMIT: expected a quantity of bytes such as 20Gi"),
        ({"RELIGHT_ENCRYPTION_KEY": "abc"}, "RELIGHT_ENCRYPTION_KEY: expected the base64 of 32 bytes"),
        (
            {"RELIGHT_ENCRYPTION_KEY": "abc", "RELIGHT_CACHE_LIMIT": "x"},
            "RELIGHT_ENCRYPTION_KEY: .*RELIGHT_CACHE_LIMIT: |RELIGHT_CACHE_LIMIT: .*RELIGHT_ENCRYPTION_KEY: ",
        ),
    ],
)
def test_settings_that_are_refused(environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        FunctionSettings.from_environ(environ)


def test_a_limit_is_a_quantity() -> None:
    assert FunctionSettings.from_environ({"RELIGHT_CACHE_LIMIT": "1.5Gi"}).cache_limit == 3 * 2**29
    assert FunctionSettings.from_environ({}).cache_limit is None
