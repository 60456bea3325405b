"""Starts the programs of this folder as real processes, under each host, on sockets of the test's own."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

PROGRAMS = Path(__file__).resolve().parent
START = 30.0
"""Seconds until a process must answer its liveness path, on a busy machine."""

_REPLICA = (
    "import json, sys; from relight.runtime.replica import run;"
    " sys.exit(run(json.loads(sys.argv[1]), [int(sys.argv[2]), int(sys.argv[3])]))"
)
# func's scaffolding has this very main, and no more.
_FUNC = "import func_python.http as http; from function import new; http.serve(new)"


def until(condition: Callable[[], Any], what: str, timeout: float = START) -> Any:
    """Poll a condition of another process, which cannot be awaited, until it holds."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"not within {timeout} s: {what}")


@dataclass
class Running:
    """A process that serves, and what it said."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    control: socket.socket | None = None

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        timeout: float = 30,
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        finally:
            connection.close()

    def post(self, path: str, body: object, **headers: str) -> tuple[int, dict[str, str], bytes]:
        return self.request("POST", path, json.dumps(body).encode(), {"content-type": "application/json"} | headers)

    def status(self, path: str) -> int:
        """The status of a GET, 0 where nobody listens."""
        try:
            return self.request("GET", path, timeout=5)[0]
        except OSError:
            return 0

    def ready(self) -> Self:
        until(lambda: self._alive() and self.status("/health/readiness") == 200, f"ready: {self.log}")
        return self

    def live(self) -> Self:
        until(lambda: self._alive() and self.status("/health/liveness") == 200, f"alive: {self.log}")
        return self

    def _alive(self) -> bool:
        assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.log.read_text()}"
        return True

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> int:
        """Ask it to end; its exit code."""
        if self.process.poll() is None:
            self.terminate()
        try:
            return self.process.wait(START)
        finally:
            self.kill()

    def kill(self) -> None:
        """Whatever is left of it, its workers included."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.control is not None:
            self.control.close()


def _command(host: str, program: Path, env: dict[str, str], fd: int, control: int) -> list[str]:
    gunicorn = [
        sys.executable,
        "-m",
        "gunicorn",
        "--no-control-socket",
        "--bind",
        f"fd://{fd}",
        "--log-level",
        "warning",
    ]
    match host:
        case "replica":
            payload = {"source": str(program), "env": env, "stamps": {"decided": time.monotonic()}}
            return [sys.executable, "-c", _REPLICA, json.dumps(payload), str(fd), str(control)]
        case "func":
            return [sys.executable, "-c", _FUNC]
        case "serve":
            return [sys.executable, "-m", "relight.runtime.serve", str(program)]
        case "gunicorn":
            return [*gunicorn, "-k", "relight.runtime.hosts.gunicorn.Worker", "function:new()"]
        case "flask":
            return [*gunicorn, "-k", "gthread", "--threads", "8", "flask_app:app"]
    raise ValueError(host)


HOSTS = ("replica", "func", "gunicorn", "flask")


def start(host: str, name: str, folder: Path, **env: str) -> Running:
    """Start a program under a host; it answers some time later (``live``, ``ready``)."""
    program = PROGRAMS / name
    log = folder / f"{name}-{host}.log"
    ours, theirs = socket.socketpair()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    binds = host in ("func", "serve")
    if binds:
        # It binds for itself, with SO_REUSEADDR: the port is free again in time.
        listener.close()
    environ = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    environ |= {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(PROGRAMS), os.environ.get("PYTHONPATH")))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONWARNINGS": "default",
        "LISTEN_ADDRESS": f"127.0.0.1:{port}",
        "PORT": str(port),
        "K_SERVICE": name,
        "RELIGHT_NAMESPACE": "tests",
        **env,
    }
    fds = [theirs.fileno(), *([] if binds else [listener.fileno()])]
    command = _command(host, program, env | {"K_SERVICE": name}, listener.fileno(), theirs.fileno())
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=program, env=environ, pass_fds=fds, stdout=output, stderr=output, start_new_session=True
        )
    theirs.close()
    listener.close()
    return Running(process, port, log, ours)


@contextmanager
def running(host: str, name: str, folder: Path, **env: str) -> Iterator[Running]:
    """A program that is alive, ended afterwards whatever happens."""
    program = start(host, name, folder, **env)
    try:
        yield program.live()
    finally:
        program.kill()
