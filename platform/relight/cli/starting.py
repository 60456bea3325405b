"""A platform as a child process: started, waited for until it is ready, stopped and waited for."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from relight.base.errors import PlatformError

START_TIMEOUT = 60.0


class PlatformProcess:
    """``relight up`` as a process of its own session, so that Ctrl-C on the terminal reaches only who started it."""

    def __init__(self, process: subprocess.Popen[bytes], status: Mapping[str, Any], log: Path) -> None:
        self.process = process
        self.status = status
        """What the platform's status file holds: its pid and addresses."""
        self.log = log

    @classmethod
    def start(cls, arguments: Sequence[str], environ: Mapping[str, str], log: Path) -> PlatformProcess:
        """Start it and wait until it is ready. PlatformError with the end of its log where it does not get there."""
        log.parent.mkdir(parents=True, exist_ok=True)
        readable, writable = os.pipe()
        try:
            with log.open("ab") as output:
                process = subprocess.Popen(
                    [sys.executable, "-m", "relight", "up", *arguments, "--ready-fd", str(writable)],
                    env=dict(environ),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=[writable],
                    start_new_session=True,
                )
            os.close(writable)
            ready, _, _ = select.select([readable], [], [], START_TIMEOUT)
            line = os.read(readable, 65536) if ready else b""
        finally:
            os.close(readable)
        if not line:
            process.terminate()
            process.wait()
            raise PlatformError(f"local mode did not start: {last_line(log)} (all of it in {log})")
        return cls(process, json.loads(line), log)

    def stop(self, timeout: float | None = None) -> int:
        """SIGTERM, and wait until all replicas are drained; the exit code. A Ctrl-C meanwhile ends it at once.

        ``subprocess.TimeoutExpired`` after ``timeout`` seconds; then it still runs.
        """
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except KeyboardInterrupt:
            self.process.send_signal(signal.SIGTERM)
            return self.process.wait()


def last_line(path: Path) -> str:
    """The last line of a log, for a sentence about what ended."""
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no word"
