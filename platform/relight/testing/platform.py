"""A running platform for tests: ``relight up`` as a process of its own, on free ports and a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from relight.cli.starting import PlatformProcess

STOP_TIMEOUT = 30.0


class PlatformFailed(AssertionError):
    """The platform, or a command against it, did not work; the message holds what it said."""


@dataclass
class RunningPlatform:
    """Where a platform of a test listens, and its process."""

    process: subprocess.Popen[bytes]
    home: Path
    api: str
    functions: str
    broker: str
    kubeconfig: Path
    log: Path
    environ: dict[str, str] = field(repr=False, default_factory=dict)

    def relight(self, *arguments: str, check: bool = True, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a ``relight`` command against this platform."""
        done = subprocess.run(
            [sys.executable, "-m", "relight", *arguments],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode != 0:
            said = f"{done.stdout}\n{done.stderr}"
            raise PlatformFailed(f"relight {' '.join(arguments)} exited {done.returncode}:\n{said}\n{self.tail()}")
        return done

    def tail(self) -> str:
        """The end of the platform's log."""
        return self.log.read_text(errors="replace")[-4000:]


@contextmanager
def running_platform(
    home: Path,
    *,
    functions: Path | None = None,
    environ: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> Iterator[RunningPlatform]:
    """Start a platform on ``home``, on free ports, and stop it at the end; PlatformFailed if it does not stop.

    ``arguments``: further ones for ``relight up``.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RELIGHT_", "KUBECONFIG"))}
    env |= {"RELIGHT_HOME": str(home), **(environ or {})}
    given = ["--api-port", "0", "--functions-port", "0", "--broker-port", "0", *arguments]
    if functions is not None:
        given += ["--functions", str(functions)]
    started = PlatformProcess.start(given, env, home / "up.log")
    status = started.status
    platform = RunningPlatform(
        started.process,
        home,
        str(status["api"]),
        str(status["functions"]),
        str(status["broker"]),
        Path(str(status["kubeconfig"])),
        started.log,
        env,
    )
    try:
        yield platform
    finally:
        try:
            started.stop(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            started.process.kill()
            started.process.wait()
            raise PlatformFailed(f"the platform did not stop within {STOP_TIMEOUT:.0f} s:\n{platform.tail()}") from None
