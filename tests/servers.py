"""Real servers for tests, on free ports of loopback. Missing at home: the test is skipped; where they are required
(RELIGHT_TESTS_REQUIRE_SERVERS=1, as in CI): it fails."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

START = 20.0
"""Seconds until a server must answer, on a busy machine."""
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

    def start(self, is_up: Callable[[int], bool]) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(self.command, stdout=output, stderr=output, start_new_session=True)
        deadline = time.monotonic() + START
        while not is_up(self.port):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, f"{self.command[0]} does not answer: {self.log.read_text()}"
            time.sleep(0.02)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


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
