"""That no request pays for another: mixed requests, some bad, some that hang up, some too late, in large batches.

Of the requests 5 % are bad (another datatype, another shape, no JSON), 5 % hang up at once or a little later, 2 % have
a deadline that cannot be kept, 1 % hold a row that the model raises at, 10 % have more rows than a run may hold; the
rest are good ones of one to four rows. Every good one must get its own rows, every bad one its own error, and memory
must not grow.

    python benchmarks/isolation.py             # 10,000 requests, then memory over 100,000
    python benchmarks/isolation.py --check     # 1,000, and memory over 5,000

Exits with 1 on any wrong answer, or where memory grows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import uvloop

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from loading import answers, free_port, infer_request, load_average, process, python, rss, tree  # noqa: E402

PATH = "/v2/models/m/infer"
WIDTH = 8
CAP = 32
POISON = -1.0
CONNECTIONS = 32
GROWTH = 8.0
"""Megabytes that memory may grow by once it has settled: allocators keep some; a leak of requests is more."""


@dataclass
class Kind:
    """A request, and what must come of it."""

    name: str
    request: bytes
    status: int = 200
    rows: list[float] | None = None
    hang_up: float | None = None
    """Seconds after which the caller leaves."""


def tensor(rows: list[list[float]], datatype: str = "FP32", width: int = WIDTH, **parameters: object) -> bytes:
    data = np.array(rows, "<f4")
    tensors = [{"name": "x", "shape": [len(rows), width], "datatype": datatype, "data": data.ravel().tolist()}]
    return infer_request(PATH, {"inputs": tensors, "parameters": parameters})


def binary(rows: list[list[float]]) -> bytes:
    data = np.array(rows, "<f4")
    parameters = {"binary_data_size": data.nbytes}
    tensors = [{"name": "x", "shape": list(data.shape), "datatype": "FP32", "parameters": parameters}]
    return infer_request(PATH, {"inputs": tensors}, [data.tobytes()])


def draw(number: int, dice: random.Random) -> Kind:
    """The request of that number: its rows are like no other's."""
    throw = dice.random()
    count = dice.randint(CAP + 1, 3 * CAP) if throw > 0.9 else dice.randint(1, 4)
    rows = [[number * 100.0 + row] + [dice.random() for _ in range(WIDTH - 1)] for row in range(count)]
    if throw < 0.05:
        name, request = dice.choice(
            [
                ("another datatype", tensor(rows, "INT64")),
                ("another shape", tensor([[*row, 0.0] for row in rows], width=WIDTH + 1)),
                ("no JSON", b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n{nope" % PATH.encode()),
            ]
        )
        return Kind(name, request, 400)
    if throw < 0.10:
        return Kind("hang-up", tensor(rows), hang_up=dice.choice([0.0, 0.001, 0.003]))
    if throw < 0.12:
        return Kind("late", tensor(rows, timeout=1), 504)
    if throw < 0.13:
        rows[0][1] = POISON
        return Kind("poisoned", tensor(rows), 500)
    name = "large" if throw > 0.9 else "good"
    other = {"mode": dice.choice(["a", "b"])} if dice.random() < 0.1 else {}
    request = binary(rows) if dice.random() < 0.3 else tensor(rows, **other)
    return Kind(name, request, rows=[row[0] for row in rows])


class Caller:
    """One connection after the other, one request after the other."""

    def __init__(self, port: int, counts: Counter[str]) -> None:
        self.port = port
        self.counts = counts
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def call(self, kind: Kind) -> None:
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        assert self.reader is not None
        self.writer.write(kind.request)
        if kind.hang_up is not None:
            await asyncio.sleep(kind.hang_up)
            self.close()
            self.counts["hang-up"] += 1
            return
        status, body = await self._answer(self.reader)
        self.counts[kind.name] += 1
        if not self._right(kind, status, body):
            self.counts["WRONG"] += 1
            print(f"wrong: {kind.name}, expected {kind.status}, got {status} {body[:200]!r}", file=sys.stderr)

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        body = await reader.readexactly(length)
        if "connection: close" in head:
            self.close()
        return int(head.split()[1]), body

    def _right(self, kind: Kind, status: int, body: bytes) -> bool:
        if kind.name == "late":
            # A deadline of a microsecond: refused, unless the model was quicker still.
            return status in (200, 504)
        if status != kind.status:
            return False
        if kind.rows is None:
            return "error" in json.loads(body)
        output = json.loads(body)["outputs"][0]
        have = np.array(output["data"]).reshape(output["shape"])
        return have.shape == (len(kind.rows), 2) and bool(np.allclose(have[:, 0], np.array(kind.rows, "f4")))

    def close(self) -> None:
        if self.writer is not None:
            self.writer.transport.abort()
        self.writer = None


async def mixed(port: int, total: int, seed: int) -> Counter[str]:
    """So many requests over all connections; what came of them."""
    counts: Counter[str] = Counter()
    numbers = iter(range(total))
    dice = random.Random(seed)

    async def one() -> None:
        caller = Caller(port, counts)
        for number in numbers:
            await asyncio.wait_for(caller.call(draw(number, dice)), 60)
        caller.close()

    await asyncio.gather(*(one() for _ in range(CONNECTIONS)))
    return counts


def settled_at(port: int) -> bool:
    """Whether nothing is in flight any more."""
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return "relight_requests_in_flight 0.0" in text and "relight_queue_length 0.0" in text


def measure(check: bool, seed: int) -> int:
    total, more = (1_000, 5_000) if check else (10_000, 100_000)
    port = free_port()
    environ = os.environ | {
        "RELIGHT_MODEL": "m",
        "RELIGHT_LOG_LEVEL": "critical",
        "RELIGHT_QUEUE_LIMIT": "1024",
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", str(HERE.parent / "platform"))]),
    }
    command = python("-m", "gunicorn", "--no-control-socket", "--bind", f"127.0.0.1:{port}", "--log-level", "critical")
    command += ["-k", "relight.runtime.hosts.gunicorn.Worker", "function:new()"]
    print(f"seed {seed}, load average {load_average()}: {' '.join(command)}")
    with (
        process(
            command, port, lambda: answers(port, "/v2/health/ready"), cwd=str(HERE / "served" / "mixed"), env=environ
        ) as pid,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        worker = tree(pid)[-1]
        begun = time.monotonic()
        counts = runner.run(mixed(port, total, seed))
        spent = time.monotonic() - begun
        print(f"  {total} requests in {spent:.1f} s: {dict(sorted(counts.items()))}")
        before = rss(worker)
        again = runner.run(mixed(port, more, seed + 1))
        after = rss(worker)
        print(f"  {more} more: {dict(sorted(again.items()))}")
        print(f"  resident memory {before:.1f} MB, then {after:.1f} MB")
        left = not settled_at(port)
    wrong = counts["WRONG"] + again["WRONG"]
    grown = after - before > GROWTH
    print(f"wrong answers: {wrong}; memory grows: {grown}; something is left in flight: {left}")
    return 1 if wrong or grown or left else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="a short run")
    parser.add_argument("--seed", type=int, default=24)
    given = parser.parse_args()
    return measure(given.check, given.seed)


if __name__ == "__main__":
    sys.exit(main())
