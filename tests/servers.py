"""Real servers for tests, on free ports of loopback. Missing at home: the test is skipped; where they are required
(RELIGHT_TESTS_REQUIRE_SERVERS=1, as in CI): it fails."""

from __future__ import annotations

import contextlib
import importlib.resources
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

START = 20.0
"""Seconds until a server must answer, on a busy machine."""
STOP = 1.0
"""Seconds for a server to write down what it has."""
REQUIRED = os.environ.get("RELIGHT_TESTS_REQUIRE_SERVERS") == "1"
"""Read when the tests are collected: no test sees the developer's own settings."""


def need(program: str, package: str) -> str:
    """The path of a server's program; without it the test is skipped, or fails where servers are required."""
    beside = Path(sys.executable).with_name(program)
    found = shutil.which(program) or (str(beside) if beside.exists() else None)
    if found is None:
        sentence = f"{program} is not installed (package {package})"
        if REQUIRED:
            pytest.fail(sentence)
        pytest.skip(sentence)
    return found


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@dataclass
class Server:
    """A server process that can be killed and started again on the same port and data."""

    command: list[str]
    port: int
    log: Path
    process: subprocess.Popen[bytes] | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def start(self, is_up: Callable[[int], bool]) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=os.environ | self.environment,
            )
        deadline = time.monotonic() + START
        while not is_up(self.port):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, f"{self.command[0]} does not answer: {self.log.read_text()}"
            time.sleep(0.02)

    def kill(self) -> None:
        """End it at once, with what it has started."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        # Where the program is a script, what it has started may still be there and answer to the next one's start.
        deadline = time.monotonic() + START
        while answers(self.port):
            assert time.monotonic() < deadline, f"{self.command[0]} does not end"
            time.sleep(0.02)

    def stop(self) -> None:
        """Ask it to end; where it waits for its clients to go first, end it in a moment."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP)
        self.kill()


def answers(port: int) -> bool:
    """Whether somebody listens."""
    with socket.socket() as sock:
        sock.settimeout(1.0)
        return sock.connect_ex(("127.0.0.1", port)) == 0


def pings(port: int) -> bool:
    """Whether a Redis is ready to talk: a password that it asks for is an answer too."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as sock:
            sock.sendall(b"PING\r\n")
            return sock.recv(64).startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False


def redis_server(folder: Path, *options: str) -> Server:
    """A Redis that writes each command to its log at once, so that a kill loses nothing."""
    program, port = need("redis-server", "redis-server"), free_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    command += ["--appendonly", "yes", "--appendfsync", "always", *options]
    return Server(command, port, folder / "redis.log")


def nats_server(folder: Path, *options: str) -> Server:
    """A NATS with JetStream."""
    program, port = need("nats-server", "nats-server"), free_port()
    command = [program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder), *options]
    return Server(command, port, folder / "nats.log")


def kafka_server(folder: Path) -> Server:
    """A small server that speaks Kafka's protocol. It saves what it has when it is asked to end."""
    need("noida-db", "noida-db, from PyPI")
    # The program in the PATH is a script that waits for this one, and ends before it.
    program, port = importlib.resources.files("noida_db") / "noida-db", free_port()
    command = [str(program), "start", "--only", "kafka", "--kafka-port", str(port), "--data-dir", str(folder / "data")]
    return Server(command, port, folder / "kafka.log", environment={"HOME": str(folder)})


def rabbitmq_server(folder: Path) -> Server:
    """A RabbitMQ without plugins, on a mapper of names (epmd) of its own: end it by ``end_names``."""
    need("rabbitmq-server", "rabbitmq-server")
    # The program in the PATH changes to another user; the one that it starts runs as whoever calls it.
    program, port = "/usr/lib/rabbitmq/bin/rabbitmq-server", free_port()
    (folder / "plugins").write_text("[].")
    environment = {
        "HOME": str(folder),
        "RABBITMQ_NODENAME": f"test{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "ERL_EPMD_PORT": str(free_port()),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
    }
    return Server([program], port, folder / "rabbitmq.log", environment=environment)


def end_names(server: Server) -> None:
    """End the mapper of names that a RabbitMQ has started. It refuses until it has seen that the node is gone."""
    deadline = time.monotonic() + START
    environment = os.environ | server.environment
    while True:
        ended = subprocess.run(["epmd", "-kill"], env=environment, capture_output=True, text=True, check=False)
        if ended.returncode == 0 or time.monotonic() > deadline:
            return
        time.sleep(0.05)
