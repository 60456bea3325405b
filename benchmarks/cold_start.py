"""Cold start of a model: a request at zero until its correct answer.

    python benchmarks/cold_start.py [--samples 20] [--check]

Local mode runs with the function ``embed`` (MiniLM, int8, ONNX). Each sample lets it go to zero, then posts a text to
/v1/embeddings and waits for the vector, which must agree with a direct run of the same model. The phases are those
that local mode itself records. Beside it, in the same run: a fresh Python process that imports onnxruntime and the
tokenizer, loads the same files and computes the same vector once. Prints every sample. Exit 1 on any wrong answer.
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
from importlib.metadata import version
from pathlib import Path

import numpy as np
import urllib3

from relight.cli.encoder import MODEL, encoder_files, push_encoder
from relight.cluster.waiting import wait_ready
from relight.net.kube import Kube
from relight.testing.platform import running_platform

ROOT = Path(__file__).resolve().parent.parent
TEXT = "compute a checksum of a file"
PHASES = ("hold", "fork", "import", "fetch", "load", "warmup", "first_answer")
TOLERANCE = 1e-4
EXEC = """
import sys, json
import numpy as np, onnxruntime
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[2])
tokenizer.no_padding()
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options)
ids = np.array([tokenizer.encode(sys.argv[3]).ids])
(states,) = session.run(None, {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0})
mean = states[0].mean(axis=0)
print(json.dumps((mean / np.linalg.norm(mean)).tolist()))
"""


def exec_once() -> tuple[float, np.ndarray]:
    """Seconds and vector of a plain process."""
    files = encoder_files()
    command = [sys.executable, "-c", EXEC, str(files["model.onnx"]), str(files["tokenizer.json"]), TEXT]
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, check=True, env={**os.environ, "ORT_DISABLE_TELEMETRY": "1"})
    return time.perf_counter() - begun, np.array(json.loads(done.stdout))


def wait_for_zero(kube: Kube, revision: str) -> None:
    for _, found in kube.watch("serving.knative.dev/v1", "Revision", "default", name=revision, timeout=60):
        if not found["status"].get("actualReplicas"):
            return
    raise SystemExit(f"{revision} did not go to zero within 60 s")


def cold_starts(kube: Kube, revision: str) -> list[dict]:
    events = kube.list("v1", "Event", "default")["items"]
    found = [
        (
            int(event["metadata"]["resourceVersion"]),
            json.loads(event["metadata"]["annotations"]["relight.dev/cold-start"]),
        )
        for event in events
        if event["reason"] == "ColdStart" and event["involvedObject"]["name"] == revision
    ]
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--check", action="store_true", help="two samples, to see that everything works")
    options = parser.parse_args()
    samples = 2 if options.check else options.samples
    load = os.getloadavg()[0]
    print(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} CPUs, load {load:.1f}")
    print(", ".join(f"{name} {version(name)}" for name in ("onnxruntime", "tokenizers", "numpy", "uvloop")))
    print(
        "peer: python -c '<import onnxruntime, tokenizers; load; encode; run once>', one thread, new process each time"
    )

    exec_once()  # the page cache is warm for both
    peers = []
    for _ in range(samples):
        seconds, reference = exec_once()
        peers.append(seconds)
    print("exec  ms:", " ".join(f"{seconds * 1000:.0f}" for seconds in peers))

    wrong = 0
    ours, phases, totals = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        push_encoder((home / "models").as_uri(), lambda text: None)
        with running_platform(home, functions=ROOT / "functions") as running:
            running.relight("apply", "-f", str(ROOT / "manifests/base/embed.yaml"))
            url = f"{running.functions}/default/embed/v1/embeddings"
            with Kube.from_kubeconfig(running.kubeconfig) as kube:
                wait_ready(kube, kube.get("serving.knative.dev/v1", "Service", "embed", "default"), 60)
                window = {"metadata": {"annotations": {"autoscaling.knative.dev/window": "6s"}}}
                kube.patch("serving.knative.dev/v1", "Revision", "embed-00001", window, "default")
                urllib3.request("POST", url, json={"model": MODEL, "input": TEXT})  # the graph is saved behind this
                for _ in range(samples + 1):
                    wait_for_zero(kube, "embed-00001")
                    begun = time.perf_counter()
                    answer = urllib3.request("POST", url, json={"model": MODEL, "input": TEXT}, retries=False)
                    ours.append(time.perf_counter() - begun)
                    vector = np.array(answer.json()["data"][0]["embedding"]) if answer.status == 200 else np.zeros(1)
                    if answer.status != 200 or np.abs(vector - reference).max() > TOLERANCE:
                        wrong += 1
                        print(f"WRONG: {answer.status} {answer.data[:200]!r}")
                recorded = cold_starts(kube, "embed-00001")
    ours = ours[1:]  # the first one may still load the model's own file
    for one in recorded[-samples:]:
        phases.append(one["phases"])
        totals.append(one["total"])
        added = sum(one["phases"].values())
        if abs(added - one["total"]) > 0.05 * one["total"]:
            wrong += 1
            print(f"WRONG: phases add up to {added * 1000:.1f} ms of {one['total'] * 1000:.1f}")
    print("relight ms:", " ".join(f"{seconds * 1000:.0f}" for seconds in ours))
    print("phases, median ms:", ", ".join(f"{p} {statistics.median(o[p] for o in phases) * 1000:.1f}" for p in PHASES))
    middle, peer = statistics.median(ours), statistics.median(peers)
    p90 = sorted(ours)[math.ceil(len(ours) * 0.9) - 1]
    print(f"relight from zero: median {middle * 1000:.0f} ms, p90 {p90 * 1000:.0f} ms (goal 150 ms)")
    print(f"plain exec: median {peer * 1000:.0f} ms; ratio {middle / peer:.2f}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
