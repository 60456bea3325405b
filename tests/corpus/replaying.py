"""The corpus: requests as the bytes of the wire, and what every host must answer to them.

``<program>/<name>.request`` is sent as it is. ``<name>.response`` holds the status, the content headers and the body.
Left out are headers that belong to the connection or the server, and not to the answer: they may differ.
"""

from __future__ import annotations

import http.client
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

CORPUS = Path(__file__).resolve().parent
NOT_CONTENT = frozenset(
    {"date", "server", "connection", "keep-alive", "transfer-encoding", "content-length", "server-timing"}
)
CHOSEN_BY_SERVER = frozenset({"ce-id", "ce-time"})
"""Their values differ from answer to answer; ``*`` stands for those that are not the corpus's own."""


@dataclass(frozen=True)
class Case:
    program: str
    name: str

    @property
    def path(self) -> Path:
        return CORPUS / self.program / self.name

    @property
    def request(self) -> bytes:
        return self.path.with_name(f"{self.name}.request").read_bytes()

    @property
    def response(self) -> bytes:
        return self.path.with_name(f"{self.name}.response").read_bytes()

    @property
    def method(self) -> str:
        return self.request.split(b" ", 1)[0].decode()

    def __str__(self) -> str:
        return f"{self.program}/{self.name}"


def cases() -> list[Case]:
    return [Case(path.parent.name, path.stem) for path in sorted(CORPUS.glob("*/*.request"))]


def exchange(port: int, case: Case, pieces: list[bytes] | None = None) -> bytes:
    """Send a request, whole or in pieces, and return the answer in the corpus's form."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces or [case.request]:
            sock.sendall(piece)
        with sock.makefile("rb") as stream:
            return read(stream, case.method)


class _Stream:
    """What ``http.client`` takes for a socket. The file behind it outlives an answer, and keeps what follows it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def makefile(self, mode: str) -> _Stream:
        return self

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def close(self) -> None:
        """Whoever opened the file closes it."""


def read(file: BinaryIO, method: str) -> bytes:
    """The next answer of a connection, normalised."""
    response = http.client.HTTPResponse(_Stream(file), method=method)  # type: ignore[arg-type]
    response.begin()
    body = response.read()
    lines = [str(response.status)]
    for name, value in sorted((name.lower(), value) for name, value in response.getheaders()):
        if name in NOT_CONTENT:
            continue
        chosen = name in CHOSEN_BY_SERVER and not value.startswith("own-")
        lines.append(f"{name}: {'*' if chosen else value}")
    return "\n".join(lines).encode("latin-1") + b"\n\n" + body
