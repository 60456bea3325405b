"""How a process ended."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass


@dataclass(frozen=True)
class ExitStatus:
    """Exactly one of ``code`` and ``signal`` is set; neither, where the process is gone and nobody was told how.

    The latter happens to children of a zygote that was killed, in a platform that is not their reaper.
    """

    code: int | None = None
    signal: int | None = None

    @classmethod
    def of(cls, wait_status: int) -> ExitStatus:
        """From the status that ``waitpid`` gives."""
        code = os.waitstatus_to_exitcode(wait_status)
        return cls(code=code) if code >= 0 else cls(signal=-code)

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def reason(self) -> str:
        """For a log line or a condition: ``exited with code 3``, ``killed by SIGKILL``."""
        if self.signal is not None:
            try:
                return f"killed by {signal.Signals(self.signal).name}"
            except ValueError:  # real-time signals have no names
                return f"killed by signal {self.signal}"
        return "ended in an unknown way" if self.code is None else f"exited with code {self.code}"

    def __str__(self) -> str:
        return self.reason
