"""Sending documents through the broker, and hearing which of them are indexed."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import urllib3
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from relight.base.errors import Deadline, PlatformError
from relight.cli.corpus import Document
from relight.net.kube import Kube

NAMESPACE = "default"
INGEST_DEADLINE = 600.0
QUIET_LIMIT = 120.0
"""Seconds without a newly indexed document after which it is given up."""
IN_FLIGHT = 64
"""Documents on their way at once: enough to keep the functions busy, few enough that progress can be seen."""


class Listener:
    """Hears which documents are indexed: a subscriber like any other, on a loopback port of this process."""

    def __init__(self) -> None:
        self.heard: queue.SimpleQueue[str] = queue.SimpleQueue()
        heard = self.heard

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                self.send_response(204)
                self.end_headers()
                heard.put(str(json.loads(body).get("document")))

            def log_message(self, *arguments: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, name="demo-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def ingest(kube: Kube, broker: str, chosen: list[Document], console: Console) -> float:
    """Send every document to the broker and wait until each is indexed; the seconds it took."""
    listener = Listener()
    trigger = {
        "apiVersion": "eventing.knative.dev/v1",
        "kind": "Trigger",
        "metadata": {"name": "demo-indexed", "namespace": NAMESPACE},
        "spec": {
            "broker": "default",
            "filters": [{"exact": {"type": "dev.relight.indexed.v1"}}],
            "subscriber": {"uri": listener.url},
        },
    }
    begun = time.monotonic()
    try:
        kube.apply(trigger)
        _send_and_wait(broker, chosen, listener, console)
    finally:
        kube.delete("eventing.knative.dev/v1", "Trigger", "demo-indexed", NAMESPACE)
        listener.close()
    return time.monotonic() - begun


def _send_and_wait(broker: str, chosen: list[Document], listener: Listener, console: Console) -> None:
    http = urllib3.PoolManager()
    waiting = {document.name for document in chosen}
    todo = iter(chosen)
    columns = (TextColumn("  indexing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("indexing", total=len(chosen))
        for _ in range(IN_FLIGHT):
            _send_next(http, broker, todo)
        give_up = time.monotonic() + INGEST_DEADLINE
        while waiting:
            try:
                name = listener.heard.get(timeout=min(QUIET_LIMIT, max(0.0, give_up - time.monotonic())))
            except queue.Empty:
                raise Deadline(
                    f"{len(waiting)} documents are not indexed, such as {min(waiting)}: "
                    f"'relight logs split', 'relight logs embed' and 'relight logs index' may say why"
                ) from None
            if name in waiting:
                waiting.discard(name)
                progress.update(bar, completed=len(chosen) - len(waiting))
                _send_next(http, broker, todo)


def _send_next(http: urllib3.PoolManager, broker: str, todo: Iterator[Document]) -> None:
    document = next(todo, None)
    if document is None:
        return
    answer = http.request(
        "POST",
        f"{broker}/{NAMESPACE}/default",
        body=json.dumps({"document": document.name, "title": document.name, "text": document.text}).encode(),
        headers={
            "ce-specversion": "1.0",
            "ce-id": f"{document.name}-{time.time_ns()}",
            "ce-source": "/relight/demo",
            "ce-type": "dev.relight.document.v1",
            "content-type": "application/json",
        },
    )
    if answer.status != 202:
        raise PlatformError(
            f"the broker refused {document.name} with {answer.status}: {answer.data.decode(errors='replace')}"
        )
