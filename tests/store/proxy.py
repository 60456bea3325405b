"""A server between the client and S3 that answers as it is told, and writes down what is asked."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Asked:
    """One request. ``key`` is the object's, without the bucket; ``range`` as in the header, without ``bytes=``."""

    method: str
    key: str
    range: str


@dataclass(frozen=True)
class Fault:
    """What happens instead of the plain answer."""

    status: int | None = None
    """Answer this, without asking the server behind."""
    cut: int | None = None
    """Close after so many bytes of the body, though the head promised all."""
    flip: int | None = None
    """Change one bit of the byte at this place of the body."""
    lost: bool = False
    """Let the request through, and close without an answer."""
    ignore_range: bool = False
    """Answer with the whole object."""


@dataclass
class Proxy:
    """``fault`` decides about each request; what it raises is raised in the server's thread, and closes."""

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    fault: Callable[[Asked], Fault | None] = lambda asked: None
    behind: str = ""

    def gets(self, key_end: str) -> list[str]:
        return [asked.range for asked in self.asked if asked.method == "GET" and asked.key.endswith(key_end)]


@contextmanager
def proxying(behind: str) -> Iterator[Proxy]:
    proxy = Proxy(behind=urlsplit(behind).netloc)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(proxy))
    server.daemon_threads = True
    proxy.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def _handler(proxy: Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:
                self.close_connection = True

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = urlsplit(self.path)
            path = parts.path.lstrip("/").partition("/")[2]
            asked = Asked(self.command, path, self.headers.get("Range", "").removeprefix("bytes="))
            proxy.asked.append(asked)
            fault = proxy.fault(asked) or Fault()
            if fault.status is not None:
                self.reply(fault.status, {}, b"")
                return
            headers = dict(self.headers)
            if fault.ignore_range:
                headers.pop("Range", None)
            connection = http.client.HTTPConnection(proxy.behind, timeout=30)
            try:
                if parts.netloc:  # asked as a proxy, for a host that only it knows
                    headers["Host"] = proxy.behind
                connection.request(self.command, f"{parts.path}?{parts.query}", body, headers)
                response = connection.getresponse()
                data = response.read()
            finally:
                connection.close()
            if fault.lost:
                self.close_connection = True
                return
            if fault.flip is not None:
                data = data[: fault.flip] + bytes([data[fault.flip] ^ 1]) + data[fault.flip + 1 :]
            self.reply(response.status, dict(response.headers), data, fault.cut)

        def reply(self, status: int, headers: dict[str, str], data: bytes, cut: int | None = None) -> None:
            self.send_response_only(status)
            if self.command != "HEAD":
                headers["Content-Length"] = str(len(data))
            for name, value in headers.items():
                if name.lower() not in ("connection", "transfer-encoding"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data[:cut])
            self.close_connection |= cut is not None

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

    return Handler
