"""Content codings of HTTP bodies, gzip and deflate, with a limit on what comes out.

A body of a few kilobytes may unpack to gigabytes: unpacking stops at the limit and not one byte behind it.
"""

from __future__ import annotations

import zlib

from relight.base.errors import BadInput, TooLarge, Unsupported

_GZIP, _ZLIB, _RAW = 31, 15, -15
SMALLEST = 1024
"""Bytes. Shorter bodies are not packed: the gain is less than a packet."""
LARGEST = 4 * 2**20
"""Bytes. Longer bodies are not packed: at about 100 MB/s everything else of the process would wait for it."""
_LEVEL = 1
"""Tensors of numbers hardly get smaller by a higher one, only slower."""


def decompress(coding: str, body: bytes, limit: int) -> bytes:
    """The body behind one content coding. TooLarge beyond ``limit`` bytes, BadInput where it is damaged."""
    name = coding.strip().lower()
    if name == "identity":
        return body
    if name in ("gzip", "x-gzip"):
        return _unpack(body, _GZIP, limit, name)
    if name == "deflate":
        # "deflate" means zlib's format (RFC 9110, 8.4.1.2); some clients send the bare stream, which has no header.
        has_header = len(body) >= 2 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
        return _unpack(body, _ZLIB if has_header else _RAW, limit, name)
    raise Unsupported(f"the content coding {coding[:40]!r} is not understood; expected gzip, deflate or identity")


def _unpack(body: bytes, window: int, limit: int, name: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    rest = body
    while True:
        unpacker = zlib.decompressobj(window)
        try:
            part = unpacker.decompress(rest, limit - size + 1)
        except zlib.error as error:
            raise BadInput(f"the body is not {name}: {error}") from None
        size += len(part)
        if size > limit:
            raise TooLarge(f"the body is over {limit} bytes once it is unpacked")
        parts.append(part)
        if not unpacker.eof:
            raise BadInput(f"the body is not whole: its {name} stream has no end")
        rest = unpacker.unused_data
        # A gzip body may have several members (RFC 1952, 2.2).
        if not rest:
            return parts[0] if len(parts) == 1 else b"".join(parts)
        if window != _GZIP:
            raise BadInput(f"{len(rest)} bytes follow the end of the {name} stream")


def asked(accept: str | None) -> str | None:
    """The coding that a client asks answers in, by naming it alone.

    A list, such as ``gzip, deflate``, is what many libraries send by themselves with every request; packing tensors for
    them would cost both sides time. ``None`` is always right: a server need not pack.
    """
    if accept is None:
        return None
    name, _, weight = accept.partition(";")
    name = name.strip().lower()
    return name if name in ("gzip", "deflate") and weight.replace(" ", "") not in ("q=0", "q=0.0") else None


def compress(coding: str, body: bytes) -> bytes:
    """The body in a coding that ``asked`` returned."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP if coding == "gzip" else _ZLIB)
    return packer.compress(body) + packer.flush()
