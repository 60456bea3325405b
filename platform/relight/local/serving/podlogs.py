"""Logs of replicas: files that the processes write themselves, and since when each part of them stands there.

A process writes to its file without anybody in between, so the lines carry no time. Once a second the size of each
growing file is noted beside it; from that a line's time is known to the second, which is what ``--since`` and
``--timestamps`` need, and costs nothing where nothing is logged.
"""

from __future__ import annotations

import asyncio
import bisect
import time
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

from relight.local.kube.handling import LogOptions

NOTED_EVERY = 1.0
CHUNK = 64 * 1024
FOLLOW_SECONDS = 0.2


def notes_of(path: Path) -> Path:
    """Where the growth of a log is noted: a line per note, time in seconds and size in bytes."""
    return path.with_name(path.name + ".times")


class Growth:
    """Notes when the logs of running replicas grew."""

    def __init__(self) -> None:
        self._sizes: dict[Path, int] = {}

    def note(self, paths: Iterable[Path]) -> None:
        """Look at these files now; those that are not among them any more are forgotten."""
        now, before = time.time(), self._sizes
        self._sizes = {}
        for path in paths:
            try:
                size = path.stat().st_size
            except FileNotFoundError:
                continue
            self._sizes[path] = size
            if size > before.get(path, 0):
                with notes_of(path).open("a") as notes:
                    notes.write(f"{now:.3f} {size}\n")


class Clock:
    """The times of a log's bytes."""

    def __init__(self, path: Path) -> None:
        self._times: list[float] = []
        self._sizes: list[int] = []
        try:
            rows = [line.split() for line in notes_of(path).read_text().splitlines()]
        except FileNotFoundError:
            rows = []
        for row in rows:
            if len(row) == 2:  # the last one may be half written
                self._times.append(float(row[0]))
                self._sizes.append(int(row[1]))

    def at(self, offset: int) -> float:
        """When the byte at ``offset`` was written, at the latest; what was not noted yet was written just now."""
        index = bisect.bisect_right(self._sizes, offset)
        return self._times[index] if index < len(self._times) else time.time()


async def read(path: Path, options: LogOptions, running: Callable[[], bool]) -> AsyncIterator[bytes]:
    """A log as asked for; followed until its replica no longer runs."""
    left = options.limit_bytes
    with path.open("rb") as file:
        content = file.read()
        shown = _selected(content, Clock(path), options)
        while True:
            if shown:
                shown = shown if left is None else shown[:left]
                left = None if left is None else left - len(shown)
                yield shown
            if not options.follow or left == 0:
                return
            ended = not running()
            offset, part = file.tell(), file.read(CHUNK)
            if not part:
                if ended:
                    return
                await asyncio.sleep(FOLLOW_SECONDS)  # a file that grows cannot be awaited
            elif options.timestamps and not part.endswith(b"\n") and not ended:
                file.seek(offset)  # a stamp stands before a whole line
                await asyncio.sleep(FOLLOW_SECONDS)
                shown = b""
                continue
            shown = b"".join(map(_stamped, part.splitlines(keepends=True))) if options.timestamps else part


def _selected(content: bytes, clock: Clock, options: LogOptions) -> bytes:
    lines = content.splitlines(keepends=True)
    if options.since is None and not options.timestamps:
        return b"".join(_last(lines, options.tail))
    timed, offset = [], 0
    for line in lines:
        at = clock.at(offset)
        offset += len(line)
        if options.since is None or at >= options.since:
            timed.append((at, line))
    kept = timed if options.tail is None else timed[max(0, len(timed) - options.tail) :]
    return b"".join(_stamped(line, at) if options.timestamps else line for at, line in kept)


def _last(lines: list[bytes], count: int | None) -> list[bytes]:
    return lines if count is None else lines[max(0, len(lines) - count) :]


def _stamped(line: bytes, at: float | None = None) -> bytes:
    moment = datetime.fromtimestamp(time.time() if at is None else at, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f000Z ").encode() + line
