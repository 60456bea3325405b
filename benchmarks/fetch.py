"""How fast weights come from object storage into the node cache, and what that costs in CPU time.

The storage is a small HTTP server of its own process on loopback that answers ranged reads of a folder by sendfile, so
that what is measured is the client. Ours is the whole way: manifest, ranged reads, a digest of every byte, the entry
published. Beside it, bare copies without any digest: boto3's download_file, one plain GET by boto3, obstore's stream
and ranged reads (where installed). All take turns in one run, each time in a fresh process, imports not counted.

    python benchmarks/fetch.py             # about a minute; 1 GB, in /dev/shm if there is room
    python benchmarks/fetch.py --check     # a few seconds; fails on any wrong byte or any chunk read twice
    python benchmarks/fetch.py --folder D  # on the disk of D (our figure then includes fsync, theirs does not)
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from relight.store.cache import NodeCache
from relight.store.files import Files
from relight.store.manifest import CHUNK
from relight.store.repository import Repository

BUCKET, MODEL = "models", "model"
KEY = f"{MODEL}/1/model.onnx"
PROCESSES = 8


# -- the server


def serve(root: Path, log: Path) -> None:
    """Answers GET and HEAD of files below ``root``, with ranges; each range of the weights is a line in ``log``."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(listener.getsockname()[1], flush=True)
    lines = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_serve, args=(connection, root, lines), daemon=True).start()


def _serve(connection: socket.socket, root: Path, lines: int) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection, connection.makefile("rb") as incoming, contextlib.suppress(OSError):
        while request := incoming.readline():
            head = b"".join(iter(incoming.readline, b"\r\n"))
            method, target, _ = request.split(b" ", 2)
            path = root / target.partition(b"?")[0].decode().partition(f"/{BUCKET}/")[2]
            if not path.is_file():
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                continue
            size = path.stat().st_size
            asked = re.search(rb"(?i)\r?\n?range: *bytes=(\d+)-(\d*)", head)
            first, last = (int(asked[1]), min(int(asked[2] or size), size - 1)) if asked else (0, size - 1)
            if path.name == "model.onnx" and method == b"GET":
                os.write(lines, b"%d-%d\n" % (first, last))
            status = b"206 Partial Content" if asked else b"200 OK"
            connection.sendall(
                b'HTTP/1.1 %s\r\nContent-Length: %d\r\nContent-Range: bytes %d-%d/%d\r\nETag: "1"\r\n'
                b"Accept-Ranges: bytes\r\nLast-Modified: Wed, 01 Jan 2025 00:00:00 GMT\r\n\r\n"
                % (status, last - first + 1, first, last, size)
            )
            if method == b"GET":
                with open(path, "rb") as file:
                    connection.sendfile(file, first, last - first + 1)


# -- the clients, each a process


def ours(url: str, folder: Path) -> Callable[[], object]:
    repository = Repository.open(f"s3://{BUCKET}")
    repository.objects.size(KEY)  # the client is made, and connected, before the clock runs
    return lambda: NodeCache(folder / "cache").fetch(repository, MODEL, 1)


def boto3_download(url: str, folder: Path) -> Callable[[], object]:
    import boto3

    client = boto3.client("s3")
    client.head_object(Bucket=BUCKET, Key=KEY)
    return lambda: client.download_file(BUCKET, KEY, str(folder / "model.onnx"))


def boto3_get(url: str, folder: Path) -> Callable[[], object]:
    import boto3

    client = boto3.client("s3")
    client.head_object(Bucket=BUCKET, Key=KEY)

    def run() -> None:
        with open(folder / "model.onnx", "wb") as file:
            for data in client.get_object(Bucket=BUCKET, Key=KEY)["Body"].iter_chunks(2**20):
                file.write(data)

    return run


def _obstore(url: str) -> Any:
    from obstore.store import S3Store

    return S3Store(
        BUCKET,
        endpoint=url,
        region="us-east-1",
        access_key_id="key",
        secret_access_key="secret",
        client_options={"allow_http": True},
        virtual_hosted_style_request=False,
    )


def obstore_stream(url: str, folder: Path) -> Callable[[], object]:
    import obstore

    store = _obstore(url)
    obstore.head(store, KEY)

    def run() -> None:
        with open(folder / "model.onnx", "wb") as file:
            for data in obstore.get(store, KEY).stream(min_chunk_size=2**20):
                file.write(data)

    return run


def obstore_ranges(url: str, folder: Path) -> Callable[[], object]:
    import obstore

    store = _obstore(url)
    size = obstore.head(store, KEY)["size"]

    def run() -> None:
        fd = os.open(folder / "model.onnx", os.O_WRONLY | os.O_CREAT)
        os.posix_fallocate(fd, 0, size)

        def chunk(offset: int) -> None:
            data = memoryview(obstore.get_range(store, KEY, start=offset, end=min(offset + CHUNK, size)))
            os.pwrite(fd, data, offset)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(chunk, range(0, size, CHUNK)))
        os.close(fd)

    return run


CLIENTS = {
    "relight, with digests": ours,
    "boto3 download_file": boto3_download,
    "boto3 one GET": boto3_get,
    "obstore stream": obstore_stream,
    "obstore ranges": obstore_ranges,
}


def client(name: str, url: str, folder: Path) -> None:
    """Be one client: prepare, wait for a line, fetch, print seconds and CPU seconds."""
    run = CLIENTS[name](url, folder)
    print("ready", flush=True)
    sys.stdin.readline()
    before, begun = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    run()
    seconds, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"seconds": seconds, "cpu": cpu, "rss": after.ru_maxrss * 1024}), flush=True)


# -- measuring


@contextlib.contextmanager
def server(root: Path, log: Path) -> Iterator[str]:
    argv = [sys.executable, __file__, "--role", "server", "--folder", str(root), "--log", str(log)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()


def start(name: str, url: str, folder: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, __file__, "--role", "client", "--name", name, "--url", url, "--folder", str(folder)]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    environ |= {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    environ |= {"AWS_REGION": "us-east-1", "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise SystemExit(f"{name} did not start")
    return process


def finish(processes: list[subprocess.Popen[str]]) -> list[dict[str, float]]:
    """Let them go at once; what they measured."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return [json.loads(process.communicate(timeout=600)[0]) for process in processes]


def fetch(name: str, url: str, folder: Path, digest: str) -> dict[str, float]:
    target = Path(tempfile.mkdtemp(dir=folder))
    try:
        (result,) = finish([start(name, url, target)])
        (copy,) = target.rglob("model.onnx")
        with open(copy, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise SystemExit(f"{name}: wrong bytes")
    finally:
        shutil.rmtree(target)
    return result


def together(url: str, folder: Path, log: Path, size: int) -> float:
    """Seconds until the last of several processes has a model that none had; each chunk must be read once."""
    log.write_text("")
    target = Path(tempfile.mkdtemp(dir=folder))
    try:
        rows = finish([start("relight, with digests", url, target) for _ in range(PROCESSES)])
    finally:
        shutil.rmtree(target)
    read = sorted(log.read_text().split())
    if len(read) != -(-size // CHUNK) or len(set(read)) != len(read):
        raise SystemExit(
            f"{PROCESSES} processes read {len(read)} chunks, {len(set(read))} different; expected each once"
        )
    return max(row["seconds"] for row in rows)


def measure(check: bool, folder: Path, megabytes: int, rounds: int) -> None:
    names = [name for name in CLIENTS if "obstore" not in name or importlib.util.find_spec("obstore")]
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        here, log = Path(scratch), Path(scratch) / "log"
        weights = here / "weights.onnx"
        hashed = hashlib.sha256()
        with open(weights, "wb") as file:
            for _ in range(megabytes):
                data = os.urandom(10**6)
                hashed.update(data)
                file.write(data)
        size = weights.stat().st_size
        Repository(Files(here / "repository")).push(weights, MODEL)
        weights.unlink()
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        print(f"{size / 1e9:.2f} GB in {folder}, {os.cpu_count()} CPUs, load before the run {load}, {rounds} rounds")
        results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        with server(here / "repository", log) as url:
            for _ in range(rounds):
                for name in names:
                    results[name].append(fetch(name, url, here, hashed.hexdigest()))
            for name, rows in results.items():
                rate = statistics.median(size / 1e9 / row["seconds"] for row in rows)
                cpu = statistics.median(row["cpu"] / (size / 1e9) for row in rows)
                rss = max(row["rss"] for row in rows) / 1e6
                print(f"  {name:<22} {rate:5.2f} GB/s   {cpu:5.2f} CPU s/GB   {rss:5.0f} MB at most")
            single = statistics.median(row["seconds"] for row in results[names[0]])
            seconds = together(url, here, log, size)
        peers = max(statistics.median(size / 1e9 / row["seconds"] for row in results[name]) for name in names[1:])
        print(f"  against the best copy without digests: {size / 1e9 / single / peers:.2f} times as fast")
        print(f"  {PROCESSES} processes at once: one read per chunk, {seconds / single:.2f} times a single fetch")
    if check:
        print("ok")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--megabytes", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--role", choices=("server", "client"), help=argparse.SUPPRESS)
    for hidden in ("--name", "--url", "--log"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "server":
        serve(options.folder, Path(options.log))
    elif options.role == "client":
        client(options.name, options.url, options.folder)
    else:
        megabytes = options.megabytes or (40 if options.check else 1000)
        memory = Path("/dev/shm")
        roomy = memory.is_dir() and shutil.disk_usage(memory).free > 3 * megabytes * 10**6
        folder = options.folder or (memory if roomy else Path(tempfile.gettempdir()))
        measure(options.check, folder, megabytes, options.rounds or (1 if options.check else 5))


if __name__ == "__main__":
    main()
