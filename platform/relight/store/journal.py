"""Which chunks of a fetch have arrived, written down as they do, so that another process can go on from there.

A line is ``FILE CHUNK DIGEST``: numbers in the manifest's order, and the digest of the bytes as they lie on this disk.
It says that a chunk was once right. Whoever goes on reads the chunk again, for the line may have reached the disk
before the chunk did.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_LINE = re.compile(rb"(\d+) (\d+) ([0-9a-f]{64})\n")


class Journal:
    """The journal of one fetch. One process writes it, with any number of threads."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    @property
    def written(self) -> Mapping[tuple[int, int], str]:
        """Digests by (file, chunk). A line that was cut off, and what follows it, does not count."""
        data = Path(f"/proc/self/fd/{self._fd}").read_bytes()
        found, at = {}, 0
        while match := _LINE.match(data, at):
            found[int(match[1]), int(match[2])] = match[3].decode()
            at = match.end()
        os.ftruncate(self._fd, at)
        return found

    def add(self, file: int, chunk: int, digest: str) -> None:
        os.write(self._fd, f"{file} {chunk} {digest}\n".encode())

    def close(self) -> None:
        os.close(self._fd)
