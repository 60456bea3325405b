"""What the router and the activator add to a warm call, and how many calls pass through them in a second.

A trivial replica (an httptools protocol of its own), the router in front of it and the load are processes of their own,
on loopback. Direct and routed calls alternate in blocks of one run, so that what else the machine does falls on both.

    python benchmarks/router.py             # about 30 s
    python benchmarks/router.py --check     # a few seconds; fails on any wrong answer, prints no judgement on speed

wrk makes the load where it is installed, else a client on uvloop (which then shares the machine's cores); nginx is
measured beside the router where it is installed. The router's own CPU time per call is read from /proc and does not
depend on who else is on the machine as much as the rates do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httptools
import uvloop

from relight.local.serving.activator import Gates
from relight.local.serving.router import Router
from relight.local.serving.routes import Routes
from relight.local.serving.types import Address, RevisionKey, RevisionLimits, RouteTarget

BODY = b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1],"data":[1.0]}]}'
ROUTED = "/default/echo/v2/models/m"
DIRECT = "/v2/models/m"
KEY = RevisionKey("default", "echo-00001")


# -- the processes


class TrivialReplica(asyncio.Protocol):
    """Answers every request with the same 200."""

    answer = (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY)) + BODY

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        self.transport.write(self.answer)  # type: ignore[attr-defined]


async def until_told() -> None:
    done = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, done.set)
    await done.wait()


async def replica() -> None:
    server = await asyncio.get_running_loop().create_server(TrivialReplica, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await until_told()
    server.close()


async def router(replica_port: int) -> None:
    routes, gates = Routes(), Gates(lambda key: None)
    routes.set(KEY.namespace, "echo", (RouteTarget(KEY, 100),))
    gates.ensure(KEY, RevisionLimits()).add("replica", Address("127.0.0.1", replica_port))
    one = Router(routes, gates)
    listener = socket.create_server(("127.0.0.1", 0))
    await one.start(listener)
    print(listener.getsockname()[1], flush=True)
    await until_told()
    await one.stop(1)


class Caller(asyncio.Protocol):
    """Sends the next request when the answer to the last has come; counts right and wrong answers."""

    def __init__(self, request: bytes, result: dict[str, int]) -> None:
        self.request = request
        self.result = result

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.parser = httptools.HttpResponseParser(self)
        self.body = b""
        transport.write(self.request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        right = self.parser.get_status_code() == 200 and self.body == BODY
        self.result["right" if right else "wrong"] += 1
        self.body = b""
        self.transport.write(self.request)  # type: ignore[attr-defined]


async def load(port: int, path: str, connections: int, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    result = {"right": 0, "wrong": 0}
    for _ in range(connections):
        await loop.create_connection(lambda: Caller(get(path), result), "127.0.0.1", port)
    started = time.monotonic()
    await asyncio.sleep(seconds)
    print(json.dumps({**result, "seconds": time.monotonic() - started}), flush=True)


# -- measuring


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


@contextlib.contextmanager
def child(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A role of this script in a process of its own, and the port that it prints."""
    process = subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def nginx(replica_port: int) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """One nginx worker with kept connections to the replica and no buffering: what the router does."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "nginx.conf"
        config.write_text(
            f"""daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log {folder}/log;
events {{}}
http {{
  access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; keepalive_requests 10000000;
  fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
  upstream replica {{ server 127.0.0.1:{replica_port}; keepalive 64; keepalive_requests 10000000; }}
  server {{ listen 127.0.0.1:{port};
    location /default/echo/ {{ proxy_pass http://replica/; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_request_buffering off; }} }}
}}
"""
        )
        process = subprocess.Popen(["nginx", "-c", str(config), "-p", folder])
        try:
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
            yield process, port
        finally:
            process.terminate()
            process.wait(5)


class Line:
    """One kept connection; ``call`` returns the seconds of one request and checks its answer."""

    def __init__(self, port: int, path: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 5)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request = get(path)
        self.wrong = 0

    def call(self) -> float:
        started = time.perf_counter()
        self.socket.sendall(self.request)
        data = self.socket.recv(65536)
        while not data.endswith(BODY):
            more = self.socket.recv(65536)
            if not more:
                break
            data += more
        took = time.perf_counter() - started
        if not (data.startswith(b"HTTP/1.1 200 ") and data.endswith(b"\r\n\r\n" + BODY)):
            self.wrong += 1
        return took


def cpu_seconds(pid: int) -> float:
    """Time on a CPU by the scheduler's own count, in nanoseconds and not in ticks."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def latency(lines: dict[str, Line], blocks: int, calls: int) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in lines}
    for line in lines.values():
        for _ in range(200):
            line.call()
    for _ in range(blocks):
        for name, line in lines.items():
            samples[name] += [line.call() for _ in range(calls)]
    return samples


def throughput(port: int, path: str, connections: int, seconds: float, use_wrk: bool) -> tuple[float, int, str]:
    """Requests per second, wrong answers, and the command."""
    if use_wrk:
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:.0f}s", f"http://127.0.0.1:{port}{path}"]
        text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + 20).stdout
        rate = float(re.search(r"Requests/sec:\s*([\d.]+)", text)[1])  # type: ignore[index]
        bad = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
        return rate, int(bad[1]) if bad else 0, " ".join(command)
    command = [sys.executable, __file__, "--role", "load", f"--port={port}", f"--path={path}"]
    command += [f"--connections={connections}", f"--seconds={seconds:g}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + 20).stdout
    result = json.loads(text)
    return result["right"] / result["seconds"], result["wrong"], "python benchmarks/router.py " + " ".join(command[2:])


def microseconds(samples: list[float], share: float) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e6


def summary(name: str, samples: list[float]) -> str:
    marks = " ".join(f"p{share * 100:g} {microseconds(samples, share):7.1f}" for share in (0.01, 0.5, 0.9, 0.99, 0.999))
    mean = statistics.fmean(samples) * 1e6
    return f"  {name:<8} n {len(samples):6d}  {marks}  max {max(samples) * 1e6:9.1f}  mean {mean:7.1f}  µs"


def measure(check: bool) -> int:
    blocks, calls, seconds = (5, 100, 0.5) if check else (40, 250, 4.0)
    use_wrk = shutil.which("wrk") is not None and not check
    versions = [f"Python {platform.python_version()}", f"uvloop {uvloop.__version__}"]
    versions += [f"httptools {httptools.__version__}", f"{os.cpu_count()} CPUs", platform.release()]
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print("  ".join(versions), f" load average before the run: {load}")
    wrong = 0
    with contextlib.ExitStack() as stack:
        _, replica_port = stack.enter_context(child("--role", "replica"))
        process, router_port = stack.enter_context(child("--role", "router", "--port", str(replica_port)))
        ports = {"direct": (replica_port, DIRECT, None), "router": (router_port, ROUTED, process.pid)}
        if shutil.which("nginx"):
            peer, peer_port = stack.enter_context(nginx(replica_port))
            ports["nginx"] = (peer_port, ROUTED, peer.pid)
        lines = {name: Line(port, path) for name, (port, path, _) in ports.items()}
        print(f"one connection, {blocks} blocks of {calls} calls each, in turn:")
        samples = latency(lines, blocks, calls)
        for name, values in samples.items():
            print(summary(name, values))
            wrong += lines[name].wrong
        for name in [name for name in samples if name != "direct"]:
            added = {s: microseconds(samples[name], s) - microseconds(samples["direct"], s) for s in (0.5, 0.99)}
            ratio = microseconds(samples[name], 0.5) / microseconds(samples["direct"], 0.5)
            print(f"  {name} adds p50 {added[0.5]:.0f} µs, p99 {added[0.99]:.0f} µs; p50 is {ratio:.2f} times direct")
        rates: dict[str, float] = {}
        print("32 connections:")
        for name, (port, path, pid) in ports.items():
            before = cpu_seconds(pid) if pid else 0.0
            rates[name], bad, command = throughput(port, path, 32, seconds, use_wrk)
            wrong += bad
            each = (cpu_seconds(pid) - before) / (rates[name] * seconds) * 1e6 if pid else 0.0
            cpu = f", {each:.0f} µs of its CPU time each" if pid else ""
            print(f"  {name:<8} {rates[name]:8.0f} requests/s{cpu}\n    {command}")
        print(f"  router / direct = {rates['router'] / rates['direct']:.2f}")
        if "nginx" in rates:
            print(f"  router / nginx = {rates['router'] / rates['nginx']:.2f}")
    print(f"wrong answers: {wrong}")
    return 1 if wrong or not all(rates.values()) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="a short run that only judges the answers")
    parser.add_argument("--role", choices=("replica", "router", "load"), help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--path", default=DIRECT, help=argparse.SUPPRESS)
    parser.add_argument("--connections", type=int, default=32, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=4.0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    roles = {
        "replica": replica,
        "router": lambda: router(given.port),
        "load": lambda: load(given.port, given.path, given.connections, given.seconds),
    }
    if given.role is None:
        return measure(given.check)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(roles[given.role]())
    return 0


if __name__ == "__main__":
    sys.exit(main())
