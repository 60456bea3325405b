"""A repository as Triton has it, and the front door on a real socket."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from runtime.serving import Served, served

from relight.runtime.residents import Residents
from relight.sdk import ModelServer


@dataclass
class Door:
    """The front door, and a client of it."""

    here: Served
    function: ModelServer

    @property
    def port(self) -> int:
        return self.here.port

    @property
    def residents(self) -> Residents:
        return self.function.residents

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if text.startswith((b"{", b"[")) else text.decode()
        finally:
            connection.close()

    def infer(self, model: str, width: int = 4, value: float = 1.0, rows: int = 1) -> tuple[int, Any]:
        """(status, (first number of the answer, version that answered)), or (status, error)."""
        data = [value] * (width * rows)
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [rows, width], "data": data}]}
        status, answer = self.ask("POST", f"/v2/models/{model}/infer", body)
        if status != 200:
            return status, answer["error"]
        return status, (answer["outputs"][0]["data"][0], answer["model_version"])

    def index(self) -> dict[tuple[str, str], tuple[str, str]]:
        status, entries = self.ask("POST", "/v2/repository/index", {})
        assert status == 200
        return {(entry["name"], entry["version"]): (entry["state"], entry["reason"]) for entry in entries}

    def metric(self, name: str) -> float:
        """The sum of a metric's values."""
        lines = self.ask("GET", "/metrics")[1].splitlines()
        values = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
        assert values, f"there is no metric {name}"
        return sum(values)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def door(repository: Path, tmp_path: Path) -> Callable[..., AbstractContextManager[Door]]:
    """``door(RELIGHT_...="...")``: the front door of the repository, open until the block ends."""

    @contextmanager
    def door(**environ: str) -> Iterator[Door]:
        function = ModelServer()
        environ = {"RELIGHT_REPOSITORY": repository.as_uri(), "RELIGHT_CACHE": str(tmp_path / "cache")} | environ
        with served(function, **environ) as here:
            yield Door(here, function)

    return door
