"""Ranged reads over HTTP, straight into the caller's memory: a third of the CPU time that S3 clients take for it.

Requests are signed by someone else, in their URL. What is answered with anything but the bytes is not interpreted
here: ``Refused`` carries the status, and who signed the request can ask again through a client that understands it.
"""

from __future__ import annotations

import contextlib
import http.client
import ssl
import time
import weakref
from collections import deque
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

IDLE = 16
"""Connections that are kept for the next read, per process."""


class Broken(Exception):
    """The connection failed. ``got`` bytes had arrived, and are in the buffer."""

    def __init__(self, reason: str, got: int) -> None:
        super().__init__(reason)
        self.got = got


class Refused(Exception):
    """The server answered with a status that brings no bytes."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


class RangeReader:
    """Reads of one server, by any number of threads; ``context`` is for https.

    ``timeout``: seconds without a single byte. ``slowest``: seconds for one read in all, against a server that sends
    drop by drop.
    """

    def __init__(self, url: str, context: ssl.SSLContext | None, *, timeout: float, slowest: float) -> None:
        self._url = urlsplit(url)
        self._context = context
        self._timeout = timeout
        self._slowest = slowest
        self._idle: deque[http.client.HTTPConnection] = deque()
        weakref.finalize(self, _close_all, self._idle)

    def read_into(self, target: str, offset: int, buffer: memoryview, tag: str | None = None) -> int:
        """Fill the buffer from ``target``, a path with its query; returns fewer bytes where the object ends.

        Broken and Refused are all it raises.
        """
        deadline = time.monotonic() + self._slowest
        headers = {"Range": f"bytes={offset}-{offset + len(buffer) - 1}", "Accept-Encoding": "identity"}
        if tag is not None:
            headers["If-Match"] = f'"{tag}"'
        got = 0
        try:
            connection, response = self._request(target, headers)
            try:
                if response.status != 206:
                    raise Refused(response.status)
                length = int(response.headers["Content-Length"])
                if length > len(buffer):
                    raise Refused(502)
                while got < length:
                    if not (read := response.readinto(buffer[got:length])):
                        raise Broken("the connection was closed in the middle of an answer", got)
                    got += read
                    if time.monotonic() > deadline:
                        raise Broken(f"not done in {self._slowest:.0f} s", got)
            except BaseException:
                connection.close()
                raise
            self._keep(connection, response)
        except (OSError, http.client.HTTPException, ValueError, TypeError) as error:
            raise Broken(str(error) or type(error).__name__, got) from error
        return got

    def _request(
        self, target: str, headers: dict[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        while True:
            try:
                connection, fresh = self._idle.pop(), False
            except IndexError:
                connection, fresh = self._connect(), True
            try:
                connection.request("GET", target, headers=headers)
                return connection, connection.getresponse()
            except (OSError, http.client.HTTPException):
                connection.close()
                if fresh:
                    raise
                # The server closed what was idle, and so perhaps all that is; this says nothing about a new connection.
                _close_all(self._idle)

    def _connect(self) -> http.client.HTTPConnection:
        host = self._url.hostname or ""
        if self._url.scheme == "https":
            return http.client.HTTPSConnection(host, self._url.port, timeout=self._timeout, context=self._context)
        return http.client.HTTPConnection(host, self._url.port, timeout=self._timeout)

    def _keep(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        if response.will_close or len(self._idle) >= IDLE:
            connection.close()
        else:
            self._idle.append(connection)


def proxied(url: str) -> bool:
    """Whether the environment sends requests for a URL through a proxy, which is not spoken to here."""
    parts = urlsplit(url)
    return parts.scheme in getproxies() and not proxy_bypass(parts.netloc)


def _close_all(connections: deque[http.client.HTTPConnection]) -> None:
    with contextlib.suppress(IndexError):
        while True:
            connections.pop().close()
