"""The three stores of the seam, each on a server or folder of its own, started once."""

from __future__ import annotations

import asyncio
import itertools
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import needing
import pytest

from relight.local.backing import Backing
from relight.retrieval.stores import open_store
from relight.retrieval.vectors import VectorStore

NUMBERS = itertools.count()
STORES = ("milvus", "pgvector", "qdrant")


class MilvusLite:
    """As local mode runs it, on a loop of its own."""

    def __init__(self, folder: Path) -> None:
        self.backing = Backing(folder / "services", folder / "logs")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="milvus")
        self._thread.start()
        self.uri: str = self.run(self.backing.ensure("milvus"))["MILVUS_URI"]

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def close(self) -> None:
        self.run(self.backing.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture(scope="session")
def milvus_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    service = MilvusLite(tmp_path_factory.mktemp("milvus"))
    yield service.uri
    service.close()


@pytest.fixture(scope="session")
def postgres_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """PostgreSQL 16 with pgvector, from a wheel."""
    needing.need("psycopg", "pgvector")
    with warnings.catch_warnings():
        # Where nobody has logged in there is no such folder: it says that it takes one of /tmp, and does.
        warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR")
        pgserver = needing.need("pgserver", "dev")
        server = pgserver.get_server(tmp_path_factory.mktemp("postgres"))
    yield server.get_uri()
    server.cleanup()


@pytest.fixture(scope="session")
def qdrant_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needing.need("qdrant_client", "qdrant")
    return tmp_path_factory.mktemp("qdrant")


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """Of the store that the test's parameter names."""
    if request.param == "milvus":
        return str(request.getfixturevalue("milvus_uri"))
    if request.param == "pgvector":
        return str(request.getfixturevalue("postgres_uri"))
    # One process may have a folder open once: each test has one.
    return f"qdrant://{request.getfixturevalue('qdrant_folder')}/{next(NUMBERS)}"


@pytest.fixture
def another(url: str) -> Iterator[Callable[[], VectorStore]]:
    """``another()``: a store on the test's collection; the first one again where a second cannot be open beside it."""
    name = f"t{next(NUMBERS)}"
    opened: list[VectorStore] = []

    def another() -> VectorStore:
        if not opened or not url.startswith("qdrant"):
            opened.append(open_store(url, name))
        return opened[-1]

    yield another
    for store in opened:
        store.close()


@pytest.fixture
def store(another: Callable[[], VectorStore]) -> VectorStore:
    return another()
