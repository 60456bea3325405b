"""HTTP/1.1 as the router speaks it: header rules, status lines, the router's own answers. Values only, no I/O."""

from __future__ import annotations

import math
from http import HTTPStatus

import orjson

from relight.wire.http import Response

SMALL = 64 * 1024
"""Bytes. Bodies up to this are read whole before a replica is asked for; heads may not be larger."""

STATUS_LINES: dict[int, bytes] = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
IDEMPOTENT = frozenset((b"GET", b"HEAD", b"OPTIONS", b"TRACE", b"PUT", b"DELETE"))
"""RFC 9110, 9.2.2: asking twice does what asking once does."""

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
"""RFC 9110, 7.6.1, and the fields of 11.7: they concern one connection and are never forwarded."""

REQUEST_NOTED = HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"expect",
    b"origin",
    b"traceparent",
    b"x-request-id",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-proto",
    b"x-forwarded-prefix",
    b"relight-timing",
    b"knative-serving-tag",
}
"""Fields of a request that the router reads or writes itself; all others pass as they came."""

RESPONSE_NOTED = HOP_BY_HOP | {b"content-length", b"content-type", b"x-request-id"}
"""Fields of an answer that the router reads or writes itself."""


def status_line(status: int) -> bytes:
    return STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def tokens(value: bytes) -> list[bytes]:
    """The members of a comma-separated field, in lower case."""
    return [token for token in (part.strip().lower() for part in value.split(b",")) if token]


def without(lines: list[bytes], connection: bytes) -> list[bytes]:
    """Header lines without those that the Connection field names as its own (RFC 9110, 7.6.1)."""
    named = set(tokens(connection)) - {b"close", b"keep-alive", b"upgrade"}
    return [line for line in lines if line.partition(b":")[0].lower() not in named] if named else lines


def split_port(authority: bytes) -> tuple[bytes, bool]:
    """The host of ``host[:port]``, in lower case and without a trailing dot, and whether it is well formed."""
    host = authority.strip().lower()
    if host.startswith(b"["):
        host, bracket, port = host.partition(b"]")
        host += bracket
        good = bool(bracket) and (not port or (port[:1] == b":" and port[1:].isdigit()))
    else:
        host, colon, port = host.partition(b":")
        good = not colon or port.isdigit()
    return host.removesuffix(b"."), good and bool(host)


def retry_after(seconds: float) -> bytes:
    """The value of Retry-After: whole seconds, at least one."""
    return b"%d" % max(1, math.ceil(seconds))


def error_body(status: int, code: str, message: str, openai: bool) -> bytes:
    """The JSON of an error: OpenAI's shape below ``/v1/``, else V2's, which is one sentence."""
    if not openai:
        return orjson.dumps({"error": message})
    kind = "invalid_request_error" if status < 500 else "server_error"
    return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})


def render(response: Response, *, head_only: bool, close: bool, extra: tuple[bytes, ...] = ()) -> bytes:
    """The wire form of an answer that the router gives itself; ``extra`` are whole header lines."""
    lines = [status_line(response.status)]
    lines += [f"{name}: {value}\r\n".encode("latin-1", "replace") for name, value in response.headers]
    lines += extra
    lines.append(b"content-length: %d\r\n" % len(response.body))
    if close:
        lines.append(b"connection: close\r\n")
    lines.append(b"\r\n")
    if not head_only:
        lines.append(response.body)
    return b"".join(lines)
