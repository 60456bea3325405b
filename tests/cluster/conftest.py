"""A real Kubernetes API of local mode on a free port, with nothing that acts on its objects: tests play controllers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from relight.base.errors import NotFound
from relight.cli.main import guard, run
from relight.cluster.client import Client
from relight.local.kube import discovery, kinds
from relight.local.kube.api import ApiServer, LogOptions
from relight.local.kube.store import ObjectStore
from relight.net import kubeconfig, tls

Run = Callable[..., tuple[int, str, str]]
LOGS = {"hello-1": [b"loading\n", b"ready\n"]}


def pod_logs(namespace: str, pod: str, options: LogOptions) -> AsyncIterator[bytes]:
    if pod not in LOGS:
        raise NotFound(f"pod {pod} has no log")

    async def lines() -> AsyncIterator[bytes]:
        for line in LOGS[pod][-(options.tail or 0) :]:
            yield line

    return lines()


@dataclass
class Api:
    """The server's thread, and what a controller would write through its store."""

    folder: Path
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    store: Any = None
    server: Any = None
    logs: dict[str, list[bytes]] = field(default_factory=lambda: LOGS)
    """Pod → what it logged."""

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(20)

    def set_ready(self, name: str, generation: int, status: str, reason: str = "", message: str = "") -> None:
        """What the controller says of a generation of a Service."""
        condition = {"type": "Ready", "status": status, "reason": reason, "message": message}
        value = {
            "observedGeneration": generation,
            "conditions": [{key: text for key, text in condition.items() if text}],
            "latestCreatedRevisionName": f"{name}-{generation:05d}",
            "url": f"http://{name}.default.example.com",
        }

        async def write() -> None:
            self.store.set_status(kinds.SERVICE, "default", name, value)

        self.run(write())

    def create(self, kind: kinds.Kind, value: dict[str, Any]) -> dict[str, Any]:
        async def write() -> Any:
            return self.store.create(kind, value)

        made: dict[str, Any] = self.run(write())
        return made

    async def start(self) -> None:
        pki = tls.ensure(self.folder / "pki")
        self.store = ObjectStore.open(self.folder / "objects.db")
        self.server = ApiServer(self.store, pki, pod_logs=pod_logs)
        port = await self.server.start("127.0.0.1", 0)
        kubeconfig.write(self.kubeconfig, f"https://127.0.0.1:{port}", pki.ca, pki.token())

    async def stop(self) -> None:
        await self.server.stop()
        self.store.close()
        for _ in range(20):  # clients have hung up: turns of the loop in which their connections are taken leave of
            await asyncio.sleep(0)


@pytest.fixture
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    running = Api(tmp_path_factory.mktemp("api"))
    thread = threading.Thread(target=running.loop.run_forever, name="api-server")
    thread.start()
    try:
        running.run(running.start())
        yield running
        running.run(running.stop())
    finally:
        running.loop.call_soon_threadsafe(running.loop.stop)
        thread.join(10)
        running.loop.close()


@pytest.fixture
def a_cluster(monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    """The API's version is not local mode's, and it has the namespaces that Knative makes."""
    monkeypatch.setitem(discovery.VERSION, "gitVersion", "v1.36.2")
    for name in ("knative-serving", "knative-eventing"):
        client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


@pytest.fixture
def client(api: Api) -> Iterator[Client]:
    made = Client.from_kubeconfig(api.kubeconfig)
    assert isinstance(made, Client)
    with made:
        yield made


@pytest.fixture
def relight(api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line: (exit code, stdout, stderr)."""
    monkeypatch.setenv("RELIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RELIGHT_KUBECONFIG", str(api.kubeconfig))
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = guard(lambda: run(arguments))
        return code, *capfd.readouterr()

    return command
