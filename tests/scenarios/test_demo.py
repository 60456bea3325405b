"""``relight demo --serve`` as a user runs it: it answers, and after Ctrl-C nothing is left. Twice in a row."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from kit import until_gone
from tables import ROOT


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def processes_of(home: Path) -> list[int]:
    """Processes that were started for a platform on this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                environ = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"RELIGHT_HOME={home}".encode() in environ:
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("interrupted", ["serving", "indexing"])
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, interrupted: str) -> None:
    home = tmp_path / "home"
    ports = {f"RELIGHT_{name}_PORT": free_port() for name in ("API", "FUNCTIONS", "BROKER")}
    environ = {**os.environ, **ports, "RELIGHT_HOME": str(home), "PYTHONUNBUFFERED": "1"}
    limit, awaited, code = ("8", "serving until Ctrl-C", 0) if interrupted == "serving" else ("200", "applying", 130)
    for _ in range(2):
        demo = subprocess.Popen(
            [sys.executable, "-m", "relight", "demo", "--serve", "--limit", limit],
            cwd=ROOT,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert demo.stdout is not None
        seen = []
        for line in demo.stdout:
            seen.append(line)
            if awaited in line:
                break
        started = processes_of(home)
        os.killpg(demo.pid, signal.SIGINT)  # as a terminal does: the whole foreground group gets it
        with demo.stdout:
            rest = demo.stdout.read()
        assert demo.wait(60) == code, "".join(seen) + rest
        assert "Traceback" not in rest
        until_gone(started, 5.0)
        assert not processes_of(home)
        assert not (home / "status.json").exists()
        assert not list((home / "sources").glob(".*"))
    if interrupted == "serving":
        assert "asked from zero: answered" in "".join(seen)
        assert f"http://127.0.0.1:{ports['RELIGHT_FUNCTIONS_PORT']}/default/retrieve" in "".join(seen)
