"""Cold start of models: a request at zero until its correct answer.

    python benchmarks/cold_start.py [--samples 5] [--models minilm,recogniser,large] [--states hot,cold,empty]
    python benchmarks/cold_start.py --check

Local mode runs with three functions: ``embed`` with MiniLM (int8, ONNX), and the model server with rapidocr's
recogniser (ONNX) and with a synthetic model of 1 GB (safetensors, PyTorch). Each sample lets all go to zero and then
asks one after the other. Three states: ``hot``, the node cache and the page cache have the files; ``cold``, the page
cache has lost them; ``empty``, the node cache has none, and they come from a repository in a folder.

Beside each, in the same run: the peer, a fresh Python process that imports the same libraries, loads the same file and
runs it once, with the page cache hot or cold; and the floor, which is the bytes that are loaded divided by the speed of
memory (hot) or of the disk (cold), plus the bare creation of the session in a process that has its imports done.
Every answer is compared with the peer's. Prints every sample. Exit 1 on any wrong answer, or phases that do not add up.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import cold_models
import numpy as np
import urllib3
from cold_models import Case

from relight.cli.encoder import encoder_files
from relight.net.kube import Kube
from relight.store.cache import NodeCache
from relight.testing.platform import RunningPlatform, running_platform

PHASES = ("hold", "fork", "import", "fetch", "load", "warmup", "first_answer")
STATES = ("hot", "cold", "empty")
PACKAGES = ("onnxruntime", "tokenizers", "torch", "safetensors", "rapidocr", "numpy", "uvloop")


# -- the peer and the floor


def plain(case: Case, folder: Path, file: Path | None = None, **flags: bool) -> tuple[float, np.ndarray, dict]:
    """Seconds of a whole process, its answer, and what it measured itself."""
    answer = folder / f"{case.name}.npy"
    argv = [sys.executable, cold_models.__file__, case.name, str(file or case.file)]
    argv += [str(encoder_files()["tokenizer.json"]), str(answer), *(f"--{name}" for name, on in flags.items() if on)]
    begun = time.perf_counter()
    done = subprocess.run(argv, capture_output=True, check=False, env={**os.environ, "ORT_DISABLE_TELEMETRY": "1"})
    seconds = time.perf_counter() - begun
    if done.returncode:
        raise SystemExit(f"the peer of {case.name} failed:\n{done.stderr.decode()}")
    return seconds, np.load(answer), json.loads(done.stdout)


def bandwidth(path: Path, *, cold: bool) -> float:
    """Bytes per second of reading a file once, from the disk or from the page cache."""
    if cold:
        forget([path])
    buffer, total = bytearray(2**20), 0
    begun = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        while read := file.readinto(buffer):
            total += read
    return total / (time.perf_counter() - begun)


def forget(paths: list[Path]) -> None:
    """Take files out of the page cache."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def floors(case: Case, entry: Path, folder: Path) -> dict[str, float]:
    """Seconds by state: what a start costs that only loads, with whichever file of the cache ours loads."""
    saved = next((entry / "made").rglob("model.onnx"), None)
    chosen = saved is not None and json.loads((saved.parent / "choice.json").read_text())["saved_is_quicker"]
    file = saved if chosen and saved is not None else entry / "files" / case.file.name
    loaded = [path for path in file.parent.glob("model.*")]
    size = sum(path.stat().st_size for path in loaded)
    largest = max(loaded, key=lambda path: path.stat().st_size)
    bare = [plain(case, folder, file, bare=True, saved=chosen)[2] for _ in range(3)]
    create = statistics.median(one["create"] for one in bare)
    found = {}
    for state, cold in (("hot", False), ("cold", True)):
        speed = statistics.median(bandwidth(largest, cold=cold) for _ in range(3))
        found[state] = size / speed + create
        print(
            f"  floor {state}: {size / 1e6:.0f} MB at {speed / 1e9:.2f} GB/s {size / speed * 1000:.0f} ms"
            f" + session {create * 1000:.0f} ms; one run takes {bare[0]['run'] * 1000:.0f} ms more"
        )
    return found


# -- ours


class Ours:
    """The platform and its functions."""

    def __init__(self, running: RunningPlatform, kube: Kube, found: list[Case]) -> None:
        self._running = running
        self._kube = kube
        self._cases = found
        self._http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(120.0))
        self.cache = NodeCache(running.home / "cache", revalidate="never")
        self.wrong = 0

    def deploy(self) -> None:
        for case in self._cases:
            self._running.relight("model", "push", str(case.source), case.name)
            self._running.relight("deploy", str(case.function))

    def wait_for_zero(self) -> None:
        for case in self._cases:
            revision = f"{case.name}-00001"
            for _, one in self._kube.watch("serving.knative.dev/v1", "Revision", "default", name=revision, timeout=90):
                if not one["status"].get("actualReplicas"):
                    break
            else:
                raise SystemExit(f"{revision} did not go to zero within 90 s")

    def put_into(self, state: str, case: Case) -> None:
        entry = self.entry(case)
        if state == "empty" and entry is not None:
            # Who saves the optimised graph of a model that was fetched just now holds its entry for a while.
            until = time.monotonic() + 60
            while not self.cache.evict(entry.name):
                if time.monotonic() > until:
                    raise SystemExit(f"{case.name} stays in use in the node cache")
                time.sleep(0.1)
        if state == "cold" and entry is not None:
            forget([path for path in entry.rglob("*") if path.is_file()])

    def entry(self, case: Case) -> Path | None:
        """The folder of the node cache that holds a model."""
        for one in self.cache.entries():
            if f"{case.name}/1" in one.names:
                return self.cache.path / "entries" / one.shelved.digest
        return None

    def ask(self, case: Case, reference: np.ndarray) -> float:
        """Seconds until a correct answer; a wrong one is told and counted."""
        url = f"{self._running.functions}/default/{case.name}{case.path}"
        begun = time.perf_counter()
        answer = self._http.request("POST", url, body=case.body, headers=case.headers)
        seconds = time.perf_counter() - begun
        got = case.read(answer.data) if answer.status == 200 else np.zeros(1)
        if got.shape != reference.shape or np.abs(got - reference).max() > case.tolerance:
            self.wrong += 1
            print(f"WRONG: {case.name} answered {answer.status} {answer.data[:200]!r}")
        return seconds

    def phases(self, case: Case, last: int) -> list[dict[str, Any]]:
        """What local mode recorded of the latest cold starts."""
        found = [
            (
                int(one["metadata"]["resourceVersion"]),
                json.loads(one["metadata"]["annotations"]["relight.dev/cold-start"]),
            )
            for one in self._kube.list("v1", "Event", "default")["items"]
            if one["reason"] == "ColdStart" and one["involvedObject"]["name"] == f"{case.name}-00001"
        ]
        latest = [one for _, one in sorted(found, key=lambda pair: pair[0])][-last:]
        for one in latest:
            added = sum(one["phases"].values())
            if abs(added - one["total"]) > 0.05 * one["total"]:
                self.wrong += 1
                print(f"WRONG: phases add up to {added * 1000:.1f} ms of {one['total'] * 1000:.1f}")
        return latest


def measure(ours: Ours, found: list[Case], states: list[str], samples: int, folder: Path) -> None:
    references = {case.name: plain(case, folder)[1] for case in found}
    for case in found:  # the first answers; graphs are saved behind them
        ours.ask(case, references[case.name])
    ours.wait_for_zero()
    floor = {}
    for case in found:
        print(f"{case.name}: {case.file.stat().st_size / 1e6:.0f} MB")
        entry = ours.entry(case)
        assert entry is not None
        floor[case.name] = floors(case, entry, folder)
    for state in states:
        taken: dict[str, list[float]] = {case.name: [] for case in found}
        peers: dict[str, list[float]] = {case.name: [] for case in found}
        for _ in range(samples):
            ours.wait_for_zero()
            for case in found:
                ours.put_into(state, case)
                taken[case.name].append(ours.ask(case, references[case.name]))
            for case in found if state != "empty" else ():
                if state == "cold":
                    forget([case.file])
                peers[case.name].append(plain(case, folder)[0])
        for case in found:
            report(case.name, state, taken[case.name], peers[case.name], floor[case.name].get(state))
            parts = ours.phases(case, samples)
            print(
                "    phases:",
                ", ".join(f"{p} {statistics.median(o['phases'][p] for o in parts) * 1000:.1f}" for p in PHASES),
            )


def report(name: str, state: str, taken: list[float], peers: list[float], floor: float | None) -> None:
    def shown(values: list[float]) -> str:
        p90 = sorted(values)[math.ceil(len(values) * 0.9) - 1]
        each = " ".join(f"{value * 1000:.0f}" for value in values)
        return f"median {statistics.median(values) * 1000:.0f} ms, p90 {p90 * 1000:.0f}  ({each})"

    print(f"{name}, {state}: {shown(taken)}")
    middle = statistics.median(taken)
    if peers:
        print(f"    plain exec: {shown(peers)}; ours is {statistics.median(peers) / middle:.1f} times as fast")
    if floor is not None:
        print(f"    floor {floor * 1000:.0f} ms; ours is {middle / floor:.2f} times that")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--models", default="minilm,recogniser,large")
    parser.add_argument("--states", default=",".join(STATES))
    parser.add_argument("--megabytes", type=int, default=1000, help="of the synthetic model")
    parser.add_argument("--folder", type=Path, help="where everything is kept; its disk is what is measured")
    parser.add_argument("--check", action="store_true", help="one small sample, to see that everything works")
    options = parser.parse_args()
    states = ["hot"] if options.check else options.states.split(",")
    samples = 1 if options.check else options.samples
    load = os.getloadavg()[0]
    print(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} CPUs, load {load:.1f}")
    print(", ".join(f"{name} {found}" for name in PACKAGES if (found := _version(name))))
    print("peer: python benchmarks/cold_models.py MODEL FILE …, one thread for ONNX, a new process each time")
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = Path(scratch)
        wanted = ["minilm"] if options.check else options.models.split(",")
        found = cold_models.cases(folder, options.megabytes, wanted)
        with (
            running_platform(folder / "home", functions=cold_models.ROOT / "functions") as running,
            Kube.from_kubeconfig(running.kubeconfig) as kube,
        ):
            ours = Ours(running, kube, found)
            ours.deploy()
            measure(ours, found, states, samples, folder)
    return 1 if ours.wrong else 0


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
