"""The real `relight` executable, run as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

EXECUTABLE = Path(sys.executable).with_name("relight")


@dataclass(frozen=True)
class Ran:
    """What came of a command: its exit code, stdout and stderr."""

    code: int
    out: str
    err: str


class Relight(Protocol):
    """Runs a command line on a state folder of the test; ``environ`` adds variables."""

    home: Path

    def __call__(self, *arguments: str, stdin: str = "", **environ: str) -> Ran: ...


class _Executable:
    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self._folder = folder

    def __call__(self, *arguments: str, stdin: str = "", **environ: str) -> Ran:
        env = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TMPDIR") if name in os.environ}
        env |= {"RELIGHT_HOME": str(self.home), "HOME": str(self._folder), "COLUMNS": "80", **environ}
        done = subprocess.run(
            [EXECUTABLE, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env=env,
            cwd=self._folder,
            timeout=60,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def relight(tmp_path: Path) -> Relight:
    """In an empty folder, with no local mode running, no kubeconfig, and nothing on a terminal."""
    return _Executable(tmp_path)
