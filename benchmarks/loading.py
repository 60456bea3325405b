"""What the benchmarks of serving share: closed-loop clients that check every answer, processes, and their counters."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httptools
import numpy as np
import uvloop
from numpy.typing import NDArray

Floats = NDArray[np.float32]

LONGEST = 60.0
"""Seconds after which a load is given up that has had no answers."""


@dataclass
class Exchange:
    """A request's bytes, and the numbers that its answer ends with, or holds as ``data``."""

    request: bytes
    want: Floats
    tolerance: float
    binary: bool
    seen: set[bytes] = field(default_factory=set)

    def right(self, status: int, body: bytes) -> bool:
        """Whether an answer is right; bodies that were found right once are not read again."""
        if status != 200:
            return False
        tail = body[-4 * self.want.size :] if self.binary else body
        if tail in self.seen:
            return True
        have = np.frombuffer(tail, "<f4") if self.binary else np.array(json.loads(body)["outputs"][0]["data"], "f4")
        if have.shape != self.want.shape or not np.allclose(have, self.want, atol=self.tolerance, rtol=1e-3):
            return False
        if len(self.seen) < 64:
            self.seen.add(tail)
        return True


class Caller(asyncio.Protocol):
    """One connection: sends the next request when the answer to the last has come."""

    def __init__(self, exchanges: Sequence[Exchange], at: int, result: Result) -> None:
        self.exchanges = exchanges
        self.at = at
        self.result = result

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.parser = httptools.HttpResponseParser(self)
        self.body = b""
        self.send()

    def send(self) -> None:
        if self.result.over:
            self.result.leave()
            return
        self.at = (self.at + 1) % len(self.exchanges)
        self.sent = time.perf_counter()
        self.transport.write(self.exchanges[self.at].request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.result.answered(time.perf_counter() - self.sent)
        if not self.exchanges[self.at].right(self.parser.get_status_code(), self.body):
            self.result.wrong += 1
        self.body = b""
        self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.result.closing:
            self.result.lost += 1
            self.result.leave()


@dataclass
class Result:
    """What one closed loop saw."""

    connections: int
    seconds: list[float] = field(default_factory=list)
    """What each answer took, of those that came in time."""
    wrong: int = 0
    lost: int = 0
    left: int = 0
    """Connections that have had their last answer."""
    over: bool = False
    closing: bool = False
    spent: float = 0.0
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    all_left: asyncio.Event = field(default_factory=asyncio.Event)

    def answered(self, seconds: float) -> None:
        if not self.over:
            self.seconds.append(seconds)
            if len(self.seconds) >= self.connections:
                self.enough.set()

    def leave(self) -> None:
        self.left += 1
        if self.left >= self.connections:
            self.enough.set()
            self.all_left.set()


async def closed_loop(port: int, exchanges: Sequence[Exchange], connections: int, seconds: float) -> Result:
    """Keep ``connections`` requests under way for so long, and until there are as many answers; all are checked."""
    result = Result(connections)
    begun = time.perf_counter()
    loop = asyncio.get_running_loop()
    transports = []
    for number in range(connections):
        at = number * len(exchanges) // connections
        transport, _ = await loop.create_connection(lambda at=at: Caller(exchanges, at, result), "127.0.0.1", port)
        transports.append(transport)
    await asyncio.sleep(seconds)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(result.enough.wait(), LONGEST)
    result.spent = time.perf_counter() - begun
    result.over = True
    # What is under way is waited for: the next load must not find a queue.
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(result.all_left.wait(), LONGEST)
    result.closing = True
    for transport in transports:
        transport.abort()
    return result


def run_loop(port: int, exchanges: Sequence[Exchange], connections: int, seconds: float) -> None:
    """The role of the load process: prints what it saw as JSON."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(closed_loop(port, exchanges, connections, seconds))
    ordered = sorted(result.seconds)
    count = len(ordered)
    marks = (
        {f"p{share * 100:g}": ordered[min(count - 1, int(count * share))] for share in (0.5, 0.9, 0.99)}
        if count
        else {}
    )
    print(
        json.dumps({"rate": count / result.spent, "count": count, "wrong": result.wrong, "lost": result.lost, **marks})
    )


# -- processes


class NotServing(Exception):
    """A server does not start here."""


@contextlib.contextmanager
def process(command: Sequence[str], port: int, ready: Callable[[], bool], **options: object) -> Iterator[int]:
    """A server in a process group of its own, once ``ready``; its pid."""
    child = subprocess.Popen(list(command), start_new_session=True, **options)  # type: ignore[call-overload]
    try:
        deadline = time.monotonic() + 60
        while not ready():
            if child.poll() is not None or time.monotonic() > deadline:
                raise NotServing(f"it does not serve on port {port}: {' '.join(command)}")
            time.sleep(0.02)
        yield child.pid
    finally:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def answers(port: int, path: str) -> bool:
    """Whether a GET of ``path`` is a 200."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as sock:
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
            return b" 200 " in sock.recv(64)
    except OSError:
        return False


def tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                found += tree(int(child))
    return found


def cpu_seconds(pid: int) -> float:
    """Time on a CPU of a process and its children, by the scheduler's own count."""
    total = 0
    for one in tree(pid):
        for task in Path(f"/proc/{one}/task").iterdir():
            with contextlib.suppress(OSError):
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def pss(pid: int) -> float:
    """Megabytes of memory of a process and its children, shared pages by their share."""
    total = 0
    for one in tree(pid):
        for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


def rss(pid: int) -> float:
    """Megabytes of resident memory of one process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def load_average() -> str:
    return ", ".join(f"{value:.1f}" for value in os.getloadavg())


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


def infer_request(path: str, head: dict[str, object], tails: Sequence[bytes] = ()) -> bytes:
    """An HTTP request of the Open Inference Protocol; with ``tails``, binary tensors behind the JSON header."""
    head_bytes = json.dumps(head, separators=(",", ":")).encode()
    body = b"".join((head_bytes, *tails))
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    if tails:
        lines += ["Content-Type: application/octet-stream", f"Inference-Header-Content-Length: {len(head_bytes)}"]
    else:
        lines += ["Content-Type: application/json"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body
