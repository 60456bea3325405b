"""Heads of HTTP/1.1 answers, and what a request's head may not say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import unquote

import httptools

from relight.base.errors import BadInput
from relight.wire.http import Response

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_REASONS = {status.value: status.phrase for status in HTTPStatus}
_LINES = {status: f"HTTP/1.1 {status} {reason}" for status, reason in _REASONS.items()}
_BREAKS = re.compile(r"[\r\n\0]")
_BODILESS = frozenset({204, 304})
_TELLING = frozenset({b"host", b"content-length", b"transfer-encoding", b"expect"})


def render(response: Response, *, date: str, keep_alive: bool, http10: bool) -> bytes:
    """The bytes of an answer. ValueError for a header that would break out of its line."""
    sized = response.status in _BODILESS
    lines = [_LINES.get(response.status) or f"HTTP/1.1 {response.status} Unknown"]
    for name, value in response.headers:
        if name == "content-length":
            sized = True
        lines.append(f"{name}: {value}")
    if not sized:
        lines.append(f"content-length: {len(response.body)}")
    lines.append(f"date: {date}")
    if not keep_alive:
        lines.append("connection: close")
    elif http10:
        lines.append("connection: keep-alive")
    head = "\r\n".join(lines)
    breaks = len(lines) - 1
    if head.count("\n") != breaks or head.count("\r") != breaks or "\0" in head:
        name = next(name for name, value in response.headers if _BREAKS.search(name) or _BREAKS.search(value))
        raise ValueError(f"the header {name!r} holds a line break")
    return b"%b\r\n\r\n%b" % (head.encode("latin-1", "replace"), response.body)


class Head(NamedTuple):
    """What a request's headers say of its body, and their bytes."""

    size: int
    length: int | None
    chunked: bool
    expect: bytes | None


def check_head(version: str, headers: Sequence[tuple[bytes, bytes]]) -> Head:
    """What the headers, their names in lower case, say. BadInput for a head that two servers could read in two ways.

    The parser refuses most of these already (both lengths at once, repeated or signed ones); what it lets pass is
    refused here, so that no proxy in front can be led to see another request than this server.
    """
    if version not in ("1.0", "1.1"):
        raise BadInput(f"HTTP/{version} is not spoken here")
    size = hosts = 0
    length, expect, codings = None, None, []
    for name, value in headers:
        size += len(name) + len(value) + 4
        if name not in _TELLING:
            continue
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            length = int(value)
        elif name == b"transfer-encoding":
            codings.append(value.strip().lower())
        else:
            expect = value
    if hosts > 1 or (version == "1.1" and hosts == 0):
        raise BadInput("expected exactly one Host header")
    if codings and (version == "1.0" or codings != [b"chunked"] or length is not None):
        raise BadInput("the only Transfer-Encoding taken is one 'chunked', in HTTP/1.1 and without Content-Length")
    return Head(size, length, bool(codings), expect)


@lru_cache(maxsize=256)
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
