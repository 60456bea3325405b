"""``relight demo``: from nothing to answers over real documents, with what it took.

The documents are the docstrings of the Python standard library on this machine. They go through the broker to split,
embed and index, a function each; then ``retrieve`` answers questions over HTTP, at last from zero.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
import urllib3
from rich.console import Console
from rich.table import Table

from relight.base.errors import Deadline, PlatformError
from relight.base.settings import Settings
from relight.cli.corpus import QUESTIONS, documents
from relight.cli.encoder import MODEL, push_encoder
from relight.cli.ingesting import NAMESPACE, ingest
from relight.cli.starting import PlatformProcess
from relight.cli.state import Platform, find_platform
from relight.cluster.apply import apply_paths
from relight.cluster.waiting import wait_ready
from relight.net.kube import Kube

FUNCTIONS = ("split", "embed", "index", "retrieve")
READY_DEADLINE = 120.0
ZERO_DEADLINE = 60.0
JSON = "-H 'content-type: application/json'"


def command(
    serve: Annotated[bool, typer.Option("--serve", help="Keep serving afterwards, until Ctrl-C.")] = False,
    project: Annotated[Path, typer.Option(help="The checkout that holds functions/, manifests/ and events/.")] = Path(),
    limit: Annotated[int, typer.Option(help="Index only so many documents; 0: all.")] = 0,
) -> int:
    """Push a model, start local mode, index real documents by events, ask questions."""
    console = Console()
    settings = Settings.from_environ()
    for name in ("functions", "manifests/base", "events/flows"):
        if not (project / name).is_dir():
            raise PlatformError(
                f"there is no {name}/ in {project.resolve()}: run the demo in relight's checkout, or pass --project"
            )
    push_encoder(settings.repository, console.print)
    with platform(settings, project.resolve(), console) as running, Kube.from_kubeconfig(running.kubeconfig) as kube:
        deploy(kube, project, console)
        chosen = documents()[: limit or None]
        took = ingest(kube, running.broker, chosen, console)
        console.print(f"{len(chosen)} documents indexed in {took:.1f} s: split, embedded and stored by functions\n")
        ask(running, console)
        ask_from_zero(kube, running, console)
        show_urls(running, console)
        if serve:
            serve_until_interrupt(console)
    return 0


@contextmanager
def platform(settings: Settings, project: Path, console: Console) -> Iterator[Platform]:
    """The platform that runs on this home; started here, and then stopped at the end, where none does."""
    running = find_platform(settings.home)
    if running is not None:
        console.print(f"using the platform that runs already (pid {running.pid})")
        yield running
        return
    console.print("starting local mode")
    arguments = ["--functions", str(project / "functions")]
    process = PlatformProcess.start(arguments, os.environ, settings.home.path / "up.log")
    try:
        started = find_platform(settings.home)
        if started is None:
            raise PlatformError(f"local mode ended at once: its log is {process.log}")
        yield started
    finally:
        console.print("stopping")
        process.stop()


def deploy(kube: Kube, project: Path, console: Console) -> None:
    """Apply the functions and the flow that chains them, and wait until each function has proved itself."""
    console.print("applying manifests/base and events/flows")
    apply_paths(kube, [project / "manifests/base", project / "events/flows"], namespace=NAMESPACE)
    for name in FUNCTIONS:
        wait_ready(kube, kube.get("serving.knative.dev/v1", "Service", name, NAMESPACE), READY_DEADLINE)


def retrieve(running: Platform, question: str, k: int = 3) -> tuple[dict[str, Any], float]:
    """The answer to a question, and the seconds it took."""
    begun = time.monotonic()
    url = f"{running.functions}/{NAMESPACE}/retrieve"
    answer = urllib3.request("POST", url, json={"query": question, "k": k}, timeout=120.0, retries=False)
    took = time.monotonic() - begun
    if answer.status != 200:
        raise PlatformError(f"retrieve answered {answer.status}: {answer.data.decode(errors='replace')}")
    return answer.json(), took


def ask(running: Platform, console: Console) -> None:
    table = Table("question", "best answers", "time", expand=False)
    for question in QUESTIONS:
        found, took = retrieve(running, question)
        best = [hit["document"] for hit in found["hits"]]
        table.add_row(question, "\n".join(best), f"{took * 1000:.0f} ms", end_section=True)
    console.print(table)


def ask_from_zero(kube: Kube, running: Platform, console: Console) -> None:
    """Let the two functions that answer go to zero, ask once more, and show where the time went.

    Their window is shortened for it by an annotation of their Revisions, which Knative takes without a new revision.
    """
    console.print("\nletting retrieve and embed go to zero")
    revisions = [_latest_revision(kube, name) for name in ("retrieve", "embed")]
    for revision in revisions:
        _annotate(kube, revision, "6s")
    for revision in revisions:
        _wait_for_zero(kube, revision)
    _, took = retrieve(running, QUESTIONS[0])
    console.print(f"asked from zero: answered in {took * 1000:.0f} ms; both functions were started for it\n")
    for revision in revisions:
        _annotate(kube, revision, None)
    console.print(_cold_starts(kube, revisions))


def _latest_revision(kube: Kube, name: str) -> str:
    service = kube.get("serving.knative.dev/v1", "Service", name, NAMESPACE)
    return str(service["status"]["latestReadyRevisionName"])


def _annotate(kube: Kube, revision: str, window: str | None) -> None:
    change = {"metadata": {"annotations": {"autoscaling.knative.dev/window": window}}}
    kube.patch("serving.knative.dev/v1", "Revision", revision, change, NAMESPACE)


def _wait_for_zero(kube: Kube, revision: str) -> None:
    changes = kube.watch("serving.knative.dev/v1", "Revision", NAMESPACE, name=revision, timeout=ZERO_DEADLINE)
    for _, found in changes:
        if not (found.get("status") or {}).get("actualReplicas"):
            return
    raise Deadline(f"revision {revision} did not go to zero within {ZERO_DEADLINE:.0f} s")


def _cold_starts(kube: Kube, revisions: list[str]) -> Table:
    """What the revisions' last starts from zero took, by phase."""
    phases = ("hold", "fork", "import", "fetch", "load", "warmup", "first_answer")
    table = Table(title="from zero, in ms", title_justify="left")
    table.add_column("revision", no_wrap=True)
    for name in (*phases, "total"):
        table.add_column("answer" if name == "first_answer" else name, justify="right")
    last: dict[str, dict[str, Any]] = {}
    events = kube.list("v1", "Event", NAMESPACE)["items"]
    for event in sorted(events, key=lambda one: int(one["metadata"]["resourceVersion"])):
        if event["reason"] == "ColdStart":
            last[event["involvedObject"]["name"]] = json.loads(
                event["metadata"]["annotations"]["relight.dev/cold-start"]
            )
    for name in revisions:
        if name in last:
            numbers = [f"{last[name]['phases'][phase] * 1000:.0f}" for phase in phases]
            table.add_row(name, *numbers, f"{last[name]['total'] * 1000:.0f}")
    return table


def show_urls(running: Platform, console: Console) -> None:
    base = f"{running.functions}/{NAMESPACE}"
    console.print("\nfunctions, at zero again when nobody calls for a minute:")
    for name in FUNCTIONS:
        console.print(f"  {base}/{name}", soft_wrap=True)
    console.print("\ntry:")
    for line in (
        f'curl {base}/retrieve {JSON} -d \'{{"query": "compress data"}}\'',
        f'curl {base}/embed/v1/embeddings {JSON} -d \'{{"model": "{MODEL}", "input": "hello"}}\'',
        f"curl {base}/embed/v2/models/{MODEL}",
        f"export KUBECONFIG={running.kubeconfig}; kubectl get ksvc",
    ):
        console.print(f"  {line}", soft_wrap=True, highlight=False, markup=False)


def serve_until_interrupt(console: Console) -> None:
    try:
        console.print("\nserving until Ctrl-C")
        signal.pause()
    except KeyboardInterrupt:
        return
