"""Functions that speak gRPC, in processes of their own: as a replica of local mode, and as an image starts them."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from programs.hosting import Running, running, start, until
from runtime.test_replica import told

GRPC = {"RELIGHT_PROTOCOL": "grpc", "RELIGHT_MODEL": "slow"}


def ready(program: Running) -> Running:
    """Wait for the function to be ready, asking as Kubernetes' probe does."""

    def serving() -> bool:
        assert program.process.poll() is None, program.log.read_text()
        with grpc.insecure_channel(f"127.0.0.1:{program.port}") as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            try:
                return bool(check(b"", timeout=5) == b"\x08\x01")
            except grpc.RpcError:
                return False

    until(serving, "ready")
    return program


def slow(seconds: float) -> list[triton.InferInput]:
    return [triton.InferInput("seconds", [1], "FP32").set_data_from_numpy(np.array([seconds], np.float32))]


@pytest.mark.parametrize("host", ["replica", "serve", "gunicorn"])
def test_what_was_taken_is_answered(host: str, tmp_path: Path) -> None:
    program = start(host, "slow_model", tmp_path, **GRPC)
    try:
        if host == "replica":
            assert told(program)[0]["event"] == "ready"
        ready(program)
        answers: list[Any] = []
        with triton.InferenceServerClient(f"127.0.0.1:{program.port}") as client:
            first = threading.Event()

            def done(result: Any, error: Any) -> None:
                answers.append(error or result.as_numpy("slept").tolist())
                first.set()

            client.async_infer("slow", slow(0.8), done)
            until(
                lambda: "model.began" in program.log.read_text(),
                "the model computes",
            )
            program.terminate()
            assert first.wait(10)
            assert answers == [[pytest.approx(0.8)]]
        assert program.process.wait(10) == 0
        assert "Traceback" not in program.log.read_text()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", program.port))
    finally:
        program.kill()


def test_the_end_of_the_platform_is_the_end_of_the_replica(tmp_path: Path) -> None:
    program = start("replica", "slow_model", tmp_path, **GRPC)
    try:
        ready(program)
        assert program.control is not None
        program.control.close()
        assert program.process.wait(10) == 0
    finally:
        program.kill()


def test_a_load_that_fails_is_told(tmp_path: Path) -> None:
    program = start("replica", "sick_load", tmp_path, RELIGHT_PROTOCOL="grpc")
    assert told(program) == [{"event": "failed", "phase": "load", "error": "ValueError: no weights in the folder"}]
    assert program.process.wait(10) == 1
    program.kill()


def test_a_protocol_that_nobody_speaks_is_told(tmp_path: Path) -> None:
    program = start("replica", "greet", tmp_path, RELIGHT_PROTOCOL="soap")
    (message,) = told(program)
    assert message["event"] == "failed"
    assert "RELIGHT_PROTOCOL: expected http or grpc, got 'soap'" in message["error"]
    assert program.process.wait(10) == 1
    program.kill()


def test_gunicorn_starts_another_worker(tmp_path: Path) -> None:
    program = start("gunicorn", "slow_model", tmp_path, **GRPC)
    try:
        ready(program)
        (first,) = children(program.process.pid)
        os.kill(first, signal.SIGKILL)
        until(lambda: [child for child in children(program.process.pid) if child != first], "another worker")
        ready(program)
        with triton.InferenceServerClient(f"127.0.0.1:{program.port}") as client:
            assert client.infer("slow", slow(0.0)).as_numpy("slept").tolist() == [0.0]
        assert program.stop() == 0
    finally:
        program.kill()


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("host", ["func", "flask"])
def test_hosts_with_a_server_of_their_own_say_who_speaks_grpc(host: str, tmp_path: Path) -> None:
    with running(host, "greet", tmp_path, RELIGHT_PROTOCOL="grpc") as program:
        until(lambda: program.status("/v2/models") == 503, "loaded, in vain")
        status, _, body = program.post("/", {"name": "you"})
        assert status == 503
        assert "relight's worker of gunicorn" in json.loads(body)["error"]


def test_an_image_serves_http_too(tmp_path: Path) -> None:
    with running("serve", "greet", tmp_path) as program:
        assert program.ready().post("/", {"name": "you"})[0] == 200
        assert program.stop() == 0


@pytest.mark.parametrize(
    ("folder", "env", "says"),
    [
        ("nowhere", {}, "holds no package 'function'"),
        ("greet", {"PORT": "http"}, "PORT: expected a port, got 'http'"),
    ],
)
def test_what_cannot_be_served_ends_at_once(folder: str, env: dict[str, str], says: str, tmp_path: Path) -> None:
    (tmp_path / "nowhere").mkdir()
    program = start("serve", "greet" if folder == "greet" else str(tmp_path / folder), tmp_path, **env)
    assert program.process.wait(10) == 2
    assert says in program.log.read_text()
    program.kill()


def test_a_second_server_on_the_port_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        program = start("serve", "greet", tmp_path, PORT=str(taken.getsockname()[1]), **GRPC)
        assert program.process.wait(10) == 2
        assert "in use" in program.log.read_text()
        program.kill()


def test_interrupt_is_an_end_too(tmp_path: Path) -> None:
    program = start("serve", "slow_model", tmp_path, **GRPC)
    try:
        ready(program).process.send_signal(signal.SIGINT)
        assert program.process.wait(10) == 0
    finally:
        program.kill()
