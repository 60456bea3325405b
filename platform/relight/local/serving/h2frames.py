"""Frames of HTTP/2 as they come, before h2 has them: their lengths are watched, and GOAWAY is taken out.

h2 looks at a frame's length only when all of it is in memory, and takes GOAWAY for the end of the connection, though
the streams that are open go on behind it (RFC 9113, 6.8).
"""

from __future__ import annotations

from typing import NamedTuple

PREFACE = 24
"""Bytes that a client sends before its first frame."""
_HEAD = 9
_GOAWAY = 7


class GoAway(NamedTuple):
    """The peer takes no stream above ``last``; what it took goes on where ``code`` is 0."""

    last: int
    code: int


class FrameTooLarge(Exception):
    """A frame is larger than was said to be taken."""


class Frames:
    """The frames of one direction of a connection."""

    def __init__(self, largest: int, *, skip: int = 0) -> None:
        self.went_away: list[GoAway] = []
        """What was taken out, oldest first; the reader empties it."""
        self._largest = largest
        self._left = skip
        self._held = b""
        self._taken: bytearray | None = None

    def pass_on(self, data: bytes) -> bytes:
        """What of these bytes is for h2; the beginning of a frame's head waits for its rest. FrameTooLarge."""
        if self._held:
            data, self._held = self._held + data, b""
        kept: list[bytes] = []
        start = at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                if self._taken is not None:
                    self._taken += data[at : at + step]
                self._left -= step
                at += step
            elif len(data) - at < _HEAD:
                self._held = data[at:]
                break
            else:
                self._left = int.from_bytes(data[at : at + 3], "big")
                if self._left > self._largest:
                    raise FrameTooLarge
                if data[at + 3] == _GOAWAY:
                    kept.append(data[start:at])
                    self._taken = bytearray()
                at += _HEAD
            if self._taken is not None:
                start = at
                if not self._left:
                    self._read(bytes(self._taken))
                    self._taken = None
        kept.append(data[start:at])
        return kept[0] if len(kept) == 1 else b"".join(kept)

    def _read(self, payload: bytes) -> None:
        last, code = (int.from_bytes(payload[at : at + 4], "big") for at in (0, 4))
        self.went_away.append(GoAway(last & 0x7FFFFFFF, code))
