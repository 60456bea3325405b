"""A replica as the platform starts it: the sockets, the control channel, the exit code."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from programs.hosting import Running, running, start, until


def told(program: Running) -> list[dict[str, Any]]:
    """What comes on the control channel until it is closed or silent for long."""
    assert program.control is not None
    program.control.settimeout(20)
    data = b""
    while not data.endswith(b"\n"):
        part = program.control.recv(4096)
        if not part:
            break
        data += part
    return [json.loads(line) for line in data.splitlines()]


def test_ready_is_announced_with_phases_that_add_up(tmp_path: Path) -> None:
    decided = time.monotonic()
    program = start("replica", "slow", tmp_path, SLOW_LOAD="0.3")
    (message,) = told(program)
    heard = time.monotonic()
    assert message["event"] == "ready"
    assert list(message["phases"]) == ["fork", "import", "fetch", "load", "warmup"]
    assert message["phases"]["load"] >= 0.3
    total = sum(message["phases"].values())
    # It was decided after we began and heard of before we ended; in between lies one line over a socket.
    assert 0.3 < total <= heard - decided
    assert heard - decided - total < 1
    assert program.status("/health/readiness") == 200
    assert program.stop() == 0


SICK = {
    "sick_load": ("load", "ValueError: no weights in the folder"),
    "sick_import": ("import", "RuntimeError: a library is missing"),
    "sick_exit": ("import", "SystemExit: 0"),
    "not_a_function": ("import", "TypeError: new() returned str; expected a Model or a Step of relight.sdk"),
}


@pytest.mark.parametrize(("name", "phase", "error"), [(k, *v) for k, v in SICK.items()], ids=SICK.keys())
def test_what_cannot_be_loaded_is_told_and_ends(name: str, phase: str, error: str, tmp_path: Path) -> None:
    program = start("replica", name, tmp_path)
    assert told(program) == [{"event": "failed", "phase": phase, "error": error}]
    assert program.process.wait(10) == 1
    assert program.log.read_text().count("Traceback") == 1
    program.kill()


def test_missing_weights_are_told_without_a_guess(tmp_path: Path) -> None:
    program = start("replica", "onnx", tmp_path)
    (message,) = told(program)
    assert (message["event"], message["phase"]) == ("failed", "fetch")
    assert message["error"].endswith("RELIGHT_MODEL is not set")
    assert program.process.wait(10) == 1
    program.kill()


def test_a_bad_environment_is_told(tmp_path: Path) -> None:
    program = start("replica", "greet", tmp_path, RELIGHT_QUEUE_LIMIT="none")
    (message,) = told(program)
    assert message["event"] == "failed"
    assert "RELIGHT_QUEUE_LIMIT" in message["error"]
    assert program.process.wait(10) == 1
    program.kill()


def test_the_end_of_the_platform_is_the_end_of_the_replica(tmp_path: Path) -> None:
    with running("replica", "slow", tmp_path) as program:
        program.ready()
        assert program.control is not None
        program.control.close()
        assert program.process.wait(10) == 0


def test_the_platform_may_end_during_a_load(tmp_path: Path) -> None:
    with running("replica", "slow", tmp_path, SLOW_LOAD="60") as program:
        assert program.control is not None
        program.control.close()
        assert program.process.wait(10) == 0


def test_requests_that_came_before_the_process_are_answered(tmp_path: Path) -> None:
    # The platform's socket listens before the replica lives: a request waits there and finds it.
    program = start("replica", "greet", tmp_path)
    status = program.request("GET", "/health/liveness")[0]
    assert status == 200
    until(lambda: program.post("/", {})[0] == 200, "loaded")
    assert program.stop() == 0
