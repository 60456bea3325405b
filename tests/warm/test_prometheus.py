"""What a real Prometheus says of Knative's metrics, scraped from exporters that the test writes."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from servers import Server, free_port, need

from relight.base.errors import PlatformError
from relight.cli.fetching import fetch
from relight.warm.sources import PrometheusSource, Reading

F, G = ("shop", "reader-00001"), ("shop", "writer-00002")
OLD = '{{namespace_name="shop",revision_name="reader-00001",pod_name="{pod}",response_code="{code}"}}'
NEW = '{k8s_namespace_name="shop",kn_revision_name="writer-00002"}'
LOADS = {"fetch": 1.0, "load": 3.0}
POD = "serving_knative_dev_revision"


class Exporter:
    """A page per target; a target without one is down."""

    def __init__(self) -> None:
        self.pages: dict[str, str] = {}
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = exporter.pages.get(self.path.removeprefix("/metrics/"))
                self.send_response(200 if body is not None else 503)
                self.send_header("content-type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write((body or "").encode())

            def log_message(self, *arguments: object) -> None:
                """Tests print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture(scope="module")
def exporter() -> Iterator[Exporter]:
    made = Exporter()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture(scope="module")
def url(exporter: Exporter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prometheus")
    program, port = need("prometheus", "prometheus"), free_port()
    jobs = [job(exporter, name) for name in ("one", "two", "new", "activator")]
    config = {"global": {"scrape_interval": "100ms", "scrape_timeout": "100ms"}, "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(json.dumps(config))
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    server = Server(command, port, folder / "log")
    server.start(is_ready)
    yield f"http://127.0.0.1:{port}"
    server.kill()


def job(exporter: Exporter, name: str) -> Mapping[str, object]:
    """A target whose address is the exporter's, and whose name is its own, as a pod's is."""
    labels = {"instance": f"10.0.0.{len(name)}:{name}"}
    if name in ("one", "two"):
        labels |= {"namespace": "shop", POD: "reader-00001"}
    target = {"targets": [exporter.address], "labels": labels}
    return {"job_name": name, "metrics_path": f"/metrics/{name}", "static_configs": [target]}


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=1.0) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def queue(pod: str, requests: int, failed: int = 0, depth: int = 0, load: float = 1.5) -> str:
    ok, bad = (OLD.format(pod=pod, code=code) for code in ("200", "500"))
    return (
        f"revision_request_count{ok} {requests}\nrevision_request_count{bad} {failed}\n"
        f'revision_queue_depth{ok} {depth}\nrelight_load_seconds{{phase="fetch"}} 0.5\n'
        f'relight_load_seconds{{phase="load"}} {load}\nrelight_requests_in_flight {depth}\n'
    )


def until(source: PrometheusSource, wanted: Callable[[Mapping[tuple[str, str], Reading]], bool]) -> None:
    deadline, found = time.monotonic() + 20.0, source.read()
    while not wanted(found):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
        found = source.read()


def test_what_replicas_count_is_read_and_outlives_them(exporter: Exporter, url: str) -> None:
    source = PrometheusSource(url, fetch)
    exporter.pages = {
        "one": queue("a", 5, failed=1, depth=2),
        "two": queue("b", 3),
        "new": f"kn_serving_invocation_duration_seconds_count{NEW} 7\nkn_serving_queue_depth{NEW} 1\n",
        "activator": 'activator_request_concurrency{namespace_name="shop",revision_name="reader-00001"} 4\n'
        f"kn_revision_request_concurrency{NEW} 1\n",
    }
    until(source, lambda found: found == {F: Reading(9.0, 6.0, 4.0, 2.0, LOADS), G: Reading(7.0, 2.0)})
    # A replica goes: what it had answered is no new request, and not forgotten either.
    exporter.pages = {"one": queue("a", 6, failed=1)}
    until(source, lambda found: found == {F: Reading(10.0, 0.0, 4.0, 2.0, LOADS), G: Reading(7.0)})
    # Another comes in its place, and starts to count.
    exporter.pages = {"one": queue("a", 6, failed=1), "two": queue("c", 1, load=3.0)}
    until(source, lambda found: found[F] == Reading(11.0, 0.0, 5.5, 2.0, {"fetch": 1.0, "load": 4.5}))


def test_a_prometheus_that_is_not_there_is_told() -> None:
    with pytest.raises(PlatformError):
        PrometheusSource(f"http://127.0.0.1:{free_port()}", fetch).read()
