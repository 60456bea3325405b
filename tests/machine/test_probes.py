"""Probes of a pod spec: how they are read, and what real servers and commands answer them."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import uvloop

from relight.base.errors import LoadFailed
from relight.local.serving import probing
from relight.local.serving.probes import Probe, Probes
from relight.net.probing import connect, execute, http_get


@pytest.mark.parametrize(
    ("said", "probe"),
    [
        pytest.param(None, None, id="none"),
        pytest.param({"tcpSocket": {"port": 0}, "successThreshold": 1}, None, id="knatives-default-is-known-already"),
        pytest.param({"periodSeconds": 3}, None, id="without-a-handler"),
        pytest.param({"tcpSocket": {"port": 9}}, Probe(tcp={"port": 9}), id="tcp"),
        pytest.param({"exec": {"command": ["a", "b"]}}, Probe(command=("a", "b")), id="exec"),
        pytest.param(
            {"httpGet": {"path": "/x"}, "initialDelaySeconds": 2, "periodSeconds": 3, "timeoutSeconds": 4}
            | {"successThreshold": 5, "failureThreshold": 6},
            Probe({"path": "/x"}, None, (), 2, 3, 4, 5, 6),
            id="http-with-all-its-times",
        ),
    ],
)
def test_reading(said: dict[str, Any] | None, probe: Probe | None) -> None:
    assert Probe.of(said) == probe


@pytest.mark.parametrize(("asked", "port"), [(None, 40000), (0, 40000), (8080, 40000), ("user-port", 40000), (9, 9)])
def test_the_containers_port_is_the_replicas(asked: Any, port: int) -> None:
    probes = Probes.of({"ports": [{"name": "user-port", "containerPort": 8080}]})
    assert probes.port(asked, 40000) == port


class Health(BaseHTTPRequestHandler):
    """Answers with the status that its path names."""

    def do_GET(self) -> None:
        assert self.headers["user-agent"].startswith("kube-probe/") or self.headers["x-own"] == "1"
        self.send_response(int(self.path.strip("/")))
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Health) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def run(story: Any) -> Any:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(story)


@pytest.mark.parametrize(
    ("path", "says"),
    [("/200", None), ("302", None), ("/400", "GET /400 answered 400"), ("/503", "GET /503 answered 503")],
)
def test_http(port: int, path: str, says: str | None) -> None:
    assert run(http_get("127.0.0.1", port, path, [("x-own", "1")], 5.0)) == says


def test_what_does_not_answer(port: int, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        quiet = silent.getsockname()[1]
        assert run(http_get("127.0.0.1", quiet, "/", [], 0.1)) == "GET / took more than 0.1 s"
        assert run(connect("127.0.0.1", quiet, 1.0)) is None
    assert "port" in str(run(connect("127.0.0.1", quiet, 1.0)))
    assert "GET /" in str(run(http_get("127.0.0.1", quiet, "/", [], 1.0)))


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["test", "-e", "here"], None),
        (["test", "-e", "gone"], "test exited with code 1"),
        (["sh", "-c", "exit $CODE"], "sh exited with code 7"),
        (["no-such-command"], "no-such-command: No such file or directory"),
        (["sh", "-c", "sleep 60 & sleep 60"], "sh took more than 0.3 s"),
    ],
)
def test_commands(command: list[str], says: str | None, tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    environ = {"PATH": "/usr/bin:/bin", "CODE": "7"}
    assert run(execute(command, environ, str(tmp_path), 0.3 if "sleep" in command[-1] else 10.0)) == says


def test_a_startup_probe_that_never_succeeds_ends_the_start() -> None:
    async def check(probe: Probe) -> str | None:
        return "not yet"

    startup = Probe(command=("x",), period=0.05, failures=2)
    with pytest.raises(LoadFailed, match="startup probe: not yet"):
        run(probing.until_ready(Probes(startup=startup), check))


def test_success_and_failure_count_in_a_row() -> None:
    answers = iter([None, "bad", "bad", None, "bad", "bad", "bad", None, None])
    turns: list[bool] = []
    over = asyncio.Event()

    async def check(probe: Probe) -> str | None:
        answer = next(answers, "end")
        if answer == "end":
            over.set()
            await asyncio.sleep(60)
        return answer

    async def story() -> None:
        probe = Probe(command=("x",), period=0.001, successes=2, failures=3)
        task = asyncio.ensure_future(probing.watch(probe, check, lambda well, wrong: turns.append(well)))
        async with asyncio.timeout(10):
            await over.wait()
        task.cancel()

    run(story())
    assert turns == [False, True]
