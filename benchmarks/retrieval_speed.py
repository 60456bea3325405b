"""The speed part of ``retrieval.py``: the index's throughput, memory, and searches warm and from zero, step by step."""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import corpora
import numpy as np

from relight.base.settings import Settings
from relight.cli.encoder import push_encoder
from relight.net.kube import Kube
from relight.retrieval.milvus import Milvus
from relight.retrieval.vectors import Query, Row, Space
from relight.testing.platform import RunningPlatform, running_platform

DIMENSION = 384
BATCH = 500
CHECKS = 5
ROOT = Path(__file__).resolve().parents[1]


def main(folder: Path, chunks: int, part: str) -> int:
    """Print the figures of a part, or of all; 1 where an answer is wrong or memory is not flat."""
    print(f"pymilvus {version('pymilvus')}, milvus-lite {version('milvus-lite')}, load {os.getloadavg()[0]:.1f}")
    wrong = 0
    if part != "search":
        with milvus_lite(folder / f"milvus-{os.getpid()}") as uri:
            wrong += throughput(uri, min(chunks or 100_000, 20_000)) if part != "memory" else 0
            wrong += flat_memory(uri, chunks or 100_000) if part != "index" else 0
    if part in ("all", "search"):
        wrong += searches(folder)
    return 1 if wrong else 0


@contextlib.contextmanager
def milvus_lite(folder: Path) -> Iterator[str]:
    """Milvus Lite in a process of its own, as local mode runs it."""
    code = (
        "import sys; from relight.local.milvus import start; server, database, port = start(sys.argv[1], 0); "
        "print(port, flush=True); sys.stdin.read(); server.stop(1).wait(5); database.close()"
    )
    folder.mkdir(parents=True)
    command = [sys.executable, "-c", code, str(folder / "data")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()
            process.wait(30)


def made(first: int, count: int) -> list[Row]:
    """Chunks with vectors of some hundred directions: like texts, they come in groups."""
    directions = np.random.default_rng(1).normal(size=(200, DIMENSION))
    vectors = directions[np.arange(first, first + count) % 200] + np.random.default_rng(first).normal(
        size=(count, DIMENSION)
    )
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return [
        Row(f"d{number}", "0", f"chunk {number} about subject {number % 200}", vector.tolist(), {"n": number % 7})
        for number, vector in zip(range(first, first + count), vectors.astype(np.float32), strict=True)
    ]


def throughput(uri: str, chunks: int) -> int:
    """Through the seam against raw inserts of the same rows into a like collection, in turns, batch by batch.

    All end alike: a row is in the server's log, and found, when its call returns, and at the end every row is flushed
    into a segment; that last flush counts. Raw inserts check nothing: a server keeps a row twice that is sent twice.
    """
    from pymilvus import MilvusClient

    stores = {name: Milvus(uri, name, timeout=60) for name in ("seam", "insert", "upsert")}
    for store in stores.values():
        store.ensure(Space(DIMENSION, "made"))
    client = MilvusClient(uri)
    spent: dict[str, list[float]] = {name: [] for name in stores}
    for at in range(0, chunks, BATCH):
        rows = made(at, BATCH)
        values = [stores["seam"]._values(row.key, row, row.digest) for row in rows]
        ways: dict[str, Callable[[], object]] = {
            "seam": partial(stores["seam"].upsert, rows),
            "insert": partial(client.insert, "insert", values),
            "upsert": partial(client.upsert, "upsert", values),
        }
        # Who is first in a round is different each time: what one leaves to the background the next one pays for.
        for turn in range(len(ways)):
            name = list(ways)[(at // BATCH + turn) % len(ways)]
            spent[name].append(timed(ways[name]))
    last = {name: timed(partial(client.flush, name)) for name in stores}
    total = {name: sum(times) + last[name] for name, times in spent.items()}
    wrong = sum(store.count() != chunks for store in stores.values())
    print(f"\nindex, {chunks} chunks of {DIMENSION} dimensions, {BATCH} at a time, all flushed at the end")
    for name, told_as in (("insert", "MilvusClient.insert"), ("upsert", "MilvusClient.upsert"), ("seam", "the seam")):
        ratio = f"; ratio to insert {total['insert'] / total[name]:.2f}" if name != "insert" else ""
        print(f"  {told_as}: {chunks / total[name]:.0f}/s{ratio}{' (goal 0.9)' if name == 'seam' else ''}")
        print(f"    ms a call {told(spent[name])}; the last flush {last[name] * 1000:.0f} ms")
    if wrong:
        print("  WRONG COUNT")
    client.close()
    for store in stores.values():
        store.close()
    return wrong


def timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def flat_memory(uri: str, chunks: int) -> int:
    """Index and search with one store object: what its process takes must not grow with what the store holds."""
    store = Milvus(uri, "large", timeout=60)
    store.ensure(Space(DIMENSION, "made"))
    seen: list[tuple[int, int]] = []
    begun = time.perf_counter()
    for at in range(0, chunks, BATCH):
        store.upsert(made(at, BATCH))
        if at % max(BATCH, chunks // CHECKS // BATCH * BATCH) == 0:
            store.search(made(at, 1)[0].vector, Query())
            seen.append((at, resident()))
    took = time.perf_counter() - begun
    missed, times = 0, []
    for number in random.Random(2).sample(range(chunks), 50):
        asked = time.perf_counter()
        hits = store.search(made(number - number % BATCH, BATCH)[number % BATCH].vector, Query(k=1))
        times.append(time.perf_counter() - asked)
        missed += not hits or hits[0].document != f"d{number}"
    after = resident()
    grown = after - seen[1][1]
    print(
        f"\n{chunks} chunks indexed in {took:.0f} s by one process; 50 searches for a chunk's vector: {missed} missed"
    )
    print(f"  resident MB by chunks: {', '.join(f'{at}: {size}' for at, size in seen)}; at the end {after}")
    print(f"  search: {told(times)} ms")
    store.close()
    # A few answers are lost to the graph; what must not be is growth with the number of chunks (150 MB of vectors).
    return int(missed > 5) + int(grown > 40)


def resident() -> int:
    """Megabytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20


def searches(folder: Path) -> int:
    """``search`` on a running platform over the standard library's docs: warm, and the first from zero."""
    corpus = corpora.library()
    home = folder / f"home-{os.getpid()}"
    with running_platform(home, functions=ROOT / "functions") as platform:
        push_encoder(Settings.from_environ(platform.environ).repository, lambda text: None)
        index(platform, dict(list(corpus.documents.items())[:200]))
        questions = random.Random(3).sample(list(corpus.questions.values()), 60)
        url = f"{platform.functions}/default/search"
        print("\nsearch over 200 documents, through the router; ms")
        for name, more in (("hybrid", {}), ("with rerank", {"rerank": True})):
            post(url, {"query": "warm up", **more})
            answers, times = [], []
            for question in questions:
                begun = time.perf_counter()
                answers.append(post(url, {"query": question, "k": 10, **more}))
                times.append(time.perf_counter() - begun)
            steps = sorted({step for answer in answers for step in answer["timings"]})
            print(f"  {name}: whole {told(times)}")
            for step in steps:
                print(f"    {step:14} {told([answer['timings'].get(step, 0) / 1000 for answer in answers])}")
        print("  from zero, all functions at zero before; ms")
        for name, more in (("hybrid", {}), ("with rerank", {"rerank": True})):
            to_zero(platform)
            begun = time.perf_counter()
            answer = post(url, {"query": questions[0] + name, "k": 10, **more})
            print(f"    {name}: {(time.perf_counter() - begun) * 1000:.0f}, of it {answer['timings']}", flush=True)
            answers.append(answer)
    return int(any(not answer["hits"] or "degraded" in answer for answer in answers))


def to_zero(platform: RunningPlatform) -> None:
    """Let every function go to zero: with a short window, which Knative takes from a Revision's annotation."""
    kind = ("serving.knative.dev/v1", "Revision")
    with Kube.from_kubeconfig(platform.kubeconfig) as kube:
        names = [one["metadata"]["name"] for one in kube.list(*kind, "default")["items"]]
        for name in names:
            kube.patch(*kind, name, {"metadata": {"annotations": {"autoscaling.knative.dev/window": "6s"}}}, "default")
        for name in names:
            for _, found in kube.watch(*kind, "default", name=name, timeout=120.0):
                if not (found.get("status") or {}).get("actualReplicas"):
                    break


def index(platform: RunningPlatform, documents: dict[str, str]) -> None:
    """Deploy the functions and send the documents straight through split, embed and index."""
    for name in ("split", "embed", "index", "retrieve", "rerank", "search"):
        platform.relight("apply", "-f", str(ROOT / f"manifests/base/{name}.yaml"))
    for name, text in documents.items():
        data: Any = {"document": name, "text": text}
        for step, kind in (("split", "document"), ("embed", "chunks"), ("index", "embedded")):
            headers = {"ce-specversion": "1.0", "ce-id": name, "ce-source": "/b", "ce-type": f"dev.relight.{kind}.v1"}
            data = post(f"{platform.functions}/default/{step}", data, headers)


def post(url: str, data: Any, headers: dict[str, str] | None = None) -> Any:
    request = urllib.request.Request(
        url, json.dumps(data).encode(), {"content-type": "application/json", **(headers or {})}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def told(seconds: list[float]) -> str:
    """p50, p99 and the ends, in milliseconds."""
    ordered = sorted(second * 1000 for second in seconds)
    last = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"p50 {statistics.median(ordered):.1f} p99 {last:.1f} (from {ordered[0]:.1f} to {ordered[-1]:.1f})"
