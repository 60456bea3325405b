"""Heads of HTTP/1.1 answers, and what a request's head may not say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import unquote

import httptools

from relight.base.errors import BadInput
from relight.wire.http import Response

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_REASONS = {status.value: status.phrase for status in HTTPStatus}
_LINES = {status: f"HTTP/1.1 {status} {reason}\r\n".encode() for status, reason in _REASONS.items()}
_BREAKS = re.compile(r"[\r\n\0]")
_BODILESS = frozenset({204, 304})


def render(response: Response, *, date: str, keep_alive: bool, http10: bool) -> bytes:
    """The bytes of an answer. ValueError for a header that would break out of its line."""
    head = [_LINES.get(response.status) or f"HTTP/1.1 {response.status} Unknown\r\n".encode()]
    sized = response.status in _BODILESS
    for name, value in response.headers:
        if _BREAKS.search(value) or _BREAKS.search(name):
            raise ValueError(f"the header {name!r} holds a line break")
        sized = sized or name == "content-length"
        head.append(f"{name}: {value}\r\n".encode("latin-1", "replace"))
    if not sized:
        head.append(b"content-length: %d\r\n" % len(response.body))
    head.append(f"date: {date}\r\n".encode())
    if not keep_alive:
        head.append(b"connection: close\r\n")
    elif http10:
        head.append(b"connection: keep-alive\r\n")
    head.append(b"\r\n")
    head.append(response.body)
    return b"".join(head)


def check_head(version: str, headers: Sequence[tuple[bytes, bytes]]) -> tuple[int | None, bool]:
    """The Content-Length, and whether the body is chunked. BadInput for a head that two servers could read in two ways.

    The parser refuses most of these already (both lengths at once, repeated or signed ones); what it lets pass is
    refused here, so that no proxy in front can be led to see another request than this server.
    """
    if version not in ("1.0", "1.1"):
        raise BadInput(f"HTTP/{version} is not spoken here")
    hosts, length, codings = 0, None, []
    for name, value in headers:
        name = name.lower()
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            length = int(value)
        elif name == b"transfer-encoding":
            codings.append(value.strip().lower())
    if hosts > 1 or (version == "1.1" and hosts == 0):
        raise BadInput("expected exactly one Host header")
    if codings and (version == "1.0" or codings != [b"chunked"] or length is not None):
        raise BadInput("the only Transfer-Encoding taken is one 'chunked', in HTTP/1.1 and without Content-Length")
    return length, bool(codings)


def split_target(target: bytes) -> tuple[str, str]:
    """Path, percent-decoded, and query of a request's target, whichever of its forms it has."""
    if target.startswith(b"/"):
        raw, _, query = target.partition(b"#")[0].partition(b"?")
    elif target == b"*":
        raw, query = b"*", b""
    else:
        try:
            url = httptools.parse_url(target)
        except httptools.HttpParserInvalidURLError:
            raise BadInput("the request's target is no URL") from None
        raw, query = url.path or b"/", url.query or b""
    path = raw.decode("latin-1")
    return unquote(path) if "%" in path else path, query.decode("latin-1")
