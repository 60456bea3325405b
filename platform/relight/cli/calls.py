"""Plain HTTP calls of the command line: one request, its answer as it comes in."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from relight.base.errors import BadInput, Deadline, PlatformError
from relight.cli.exits import NotRunning

_PIECE = 65536


def dial(url: str) -> tuple[str, int, str, bool]:
    """Where to connect for a URL: host, port, path with query, TLS or not.

    ``*.localhost`` is loopback (RFC 6761), which Python's resolver does not know.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(f"{url!r} is not an http URL")
    host = "127.0.0.1" if parts.hostname.endswith(".localhost") else parts.hostname
    port = parts.port or (443 if parts.scheme == "https" else 80)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return host, port, path, parts.scheme == "https"


@contextmanager
def request(
    method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout: float
) -> Iterator[http.client.HTTPResponse]:
    """Send a request and give its answer, once its head is there. ``timeout`` (seconds) bounds every single wait."""
    host, port, path, secure = dial(url)
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(host, port, timeout=timeout)
    try:
        try:
            connection.request(method, path, body, {"Host": urlsplit(url).netloc, **headers})
            response = connection.getresponse()
        except TimeoutError:
            raise Deadline(f"{url} did not answer within {timeout:g} s") from None
        except ConnectionRefusedError:
            raise NotRunning(f"nothing listens on {host}:{port}", "relight status") from None
        except (OSError, http.client.HTTPException) as error:
            raise PlatformError(f"{url}: {error or type(error).__name__}") from None
        yield response
    finally:
        connection.close()


def pieces(response: http.client.HTTPResponse, url: str) -> Iterator[bytes]:
    """The body as it comes in. PlatformError: it ended before its end."""
    try:
        while piece := response.read1(_PIECE):
            yield piece
    except TimeoutError:
        raise Deadline(f"{url}: the answer stopped in the middle") from None
    except (OSError, http.client.HTTPException) as error:
        raise PlatformError(f"{url}: the answer was cut off: {error or type(error).__name__}") from None
    if response.length:  # http.client takes a connection that closes early for the end of the body
        raise PlatformError(f"{url}: the answer was cut off, {response.length} bytes are missing")
