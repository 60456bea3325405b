"""Messages with file descriptors, between the platform and its zygote.

A message is one packet of a SOCK_SEQPACKET pair: a small JSON object, and descriptors as ancillary data. Imported by
the zygote before its preloads and so by every replica: nothing heavy here.
"""

from __future__ import annotations

import array
import json
import os
import socket
from typing import Any

MAX_MESSAGE = 64 * 1024
MAX_FDS = 64


def pack(message: dict[str, Any]) -> bytes:
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) > MAX_MESSAGE:
        raise ValueError(f"a message of {len(data)} bytes is more than the {MAX_MESSAGE} that fit")
    return data


def send(sock: socket.socket, message: dict[str, Any], fds: list[int] | tuple[int, ...] = ()) -> None:
    """Send one message; the receiver gets copies of the descriptors."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([pack(message)], ancillary, socket.MSG_NOSIGNAL)


def receive(sock: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """One message and its descriptors (closed on exec, owned by the caller); None when the other side is gone.

    OSError where it was cut off: descriptors beyond the limit of the process are dropped by the kernel.
    """
    fds = array.array("i")
    try:
        data, ancillary, flags, _ = sock.recvmsg(
            MAX_MESSAGE, socket.CMSG_SPACE(MAX_FDS * fds.itemsize), socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionResetError:  # the other side went away with messages unread
        return None, []
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
        for fd in fds:
            os.close(fd)
        raise OSError("a message was cut off: too many open files, or more than fits")
    return (json.loads(data) if data else None), list(fds)


def payload_file(payload: dict[str, Any]) -> int:
    """A descriptor from which ``read_payload`` reads it; of any size, in memory, gone with the last copy."""
    fd = os.memfd_create("relight-payload", os.MFD_CLOEXEC)
    try:
        data = memoryview(json.dumps(payload).encode())
        while data:
            data = data[os.write(fd, data) :]
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_payload(fd: int) -> dict[str, Any]:
    """The payload; closes the descriptor. Reads by offset, for the position is shared with whoever has a copy."""
    try:
        size = os.fstat(fd).st_size
        payload: dict[str, Any] = json.loads(os.pread(fd, size, 0))
        return payload
    finally:
        os.close(fd)
