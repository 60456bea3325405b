"""`relight up --strict`, as a user runs it: what is kinder here than on Knative is gone."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from relight.testing.platform import running_platform
from relight.wire import cloudevents
from relight.wire.cloudevents import Event

DEADLINE = 20.0


class Plain(http.server.BaseHTTPRequestHandler):
    """Answers with JSON that is no event: an acknowledgement here, a failure on Knative."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = b'{"plain": true}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed."""


@pytest.fixture
def plain() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Plain) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_strict_from_the_command_line(tmp_path: Path, plain: str) -> None:
    manifests = [
        {"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "metadata": {"name": "default"}},
        {
            "apiVersion": "eventing.knative.dev/v1",
            "kind": "Trigger",
            "metadata": {"name": "plain"},
            "spec": {"broker": "default", "subscriber": {"uri": plain}, "delivery": {"retry": 0}},
        },
    ]
    for number, manifest in enumerate(manifests):
        (tmp_path / f"{number}.yaml").write_text(json.dumps(manifest))
    with running_platform(tmp_path / "home", arguments=["--strict"]) as platform:
        platform.relight("apply", "-f", str(tmp_path / "0.yaml"), "-f", str(tmp_path / "1.yaml"))
        headers, body = cloudevents.encode_batch([Event.of("page.read", "/scanner", {"n": 1})])
        batch = urllib3.request("POST", f"{platform.broker}/default/default", body=body, headers=dict(headers))
        assert batch.status == 400, batch.data
        assert "accepted" in platform.relight("events", "send", "page.read", "-d", '{"n": 2}').stdout
        deadline = time.monotonic() + DEADLINE
        while not (dead := json.loads(platform.relight("events", "dlq", "-o", "json").stdout)):
            assert time.monotonic() < deadline, platform.tail()
        (letter,) = dead
        assert (letter["trigger"], letter["status"]) == ("plain", 502)
        assert "no valid event" in letter["reason"]
