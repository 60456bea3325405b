"""`relight call` against a real server: what is sent, what is printed, how it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from relight.cli.calls import dial


class Echo(BaseHTTPRequestHandler):
    """Answers what it was asked, with the status that the path names; `/cut` promises more than it sends."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        kind = self.headers.get("content-type", "-")
        text = f"{self.command} {self.path} {kind} {self.headers.get('x-a', '-')} ".encode() + body
        last = self.path.rpartition("/")[2]
        self.send_response(int(last) if last.isdigit() else 200)
        self.send_header("content-length", str(len(text) + (10 if last == "cut" else 0)))
        self.send_header("server-timing", "infer;dur=3")
        self.end_headers()
        self.wfile.write(text)
        self.close_connection = last == "cut"

    do_GET = do_POST = do_PUT = answer

    def log_message(self, *arguments: object) -> None:
        """Nothing: stderr belongs to the test."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_address[1]}/f"
        listening.shutdown()
        thread.join()


CALLS: list[tuple[str, list[str], str, int, str]] = [
    ("a plain GET", [], "", 0, "GET /f/ - - "),
    ("JSON by default", ["-d", '{"a": 1}'], "", 0, 'POST /f/ application/json - {"a": 1}'),
    ("text if told", ["-d", "x", "-H", "Content-Type: text/plain"], "", 0, "POST /f/ text/plain - x"),
    ("a path and a header", ["--path", "/v2/models/m", "-H", "X-A: b"], "", 0, "GET /f/v2/models/m - b "),
    ("standard input", ["-d", "@-"], "[1]", 0, "POST /f/ application/json - [1]"),
    ("a file", ["-d", "@body.json"], "", 0, "POST /f/ application/json - {}"),
    ("another method", ["-X", "put", "-d", "1"], "", 0, "PUT /f/ application/json - 1"),
    ("not found", ["--path", "/404"], "", 4, "GET /f/404 - - "),
    ("refused", ["--path", "/422"], "", 7, "GET /f/422 - - "),
    ("failed", ["--path", "/500"], "", 1, "GET /f/500 - - "),
    ("in vain", ["--path", "/504"], "", 6, "GET /f/504 - - "),
    ("cut off", ["--path", "/cut"], "", 1, "GET /f/cut - - "),
]


@pytest.mark.parametrize(("options", "stdin", "code", "out"), [row[1:] for row in CALLS], ids=[row[0] for row in CALLS])
def test_calls(relight: Any, server: str, tmp_path: Any, options: list[str], stdin: str, code: int, out: str) -> None:
    (tmp_path / "body.json").write_text("{}")
    ran = relight("call", server, *options, stdin=stdin)
    assert (ran.code, ran.out) == (code, out), ran.err
    assert len([line for line in ran.err.splitlines() if line.startswith("error: ")]) == (1 if code else 0)


def test_timing_goes_to_stderr(relight: Any, server: str) -> None:
    ran = relight("call", server, "--timing")
    assert ran.out == "GET /f/ - - "
    assert "server-timing: infer;dur=3" in ran.err.splitlines()


def test_a_file_that_is_not_there(relight: Any, server: str) -> None:
    ran = relight("call", server, "-d", "@gone.json")
    assert (ran.code, ran.err) == (4, "error: gone.json: No such file or directory\n")


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("http://a.example", ("a.example", 80, "/", False)),
        ("http://hello.default.localhost:8080/x?y=1", ("127.0.0.1", 8080, "/x?y=1", False)),
        ("https://a.example:8443/x", ("a.example", 8443, "/x", True)),
        ("http://[::1]:81/", ("::1", 81, "/", False)),
    ],
)
def test_where_a_url_is_dialled(url: str, wanted: tuple[str, int, str, bool]) -> None:
    assert dial(url) == wanted
