"""Limits on real children: what ends them, and what does not."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import uvloop

from relight.local.serving.replica import Reason, why
from relight.proc import limiting
from relight.proc.exits import ExitStatus
from relight.proc.limiting import Limiter
from relight.proc.spawn import spawn

HUNDRED = 100 * 2**20


def run(limiter: Limiter, code: str, folder: Path, cpu: float | None = None, memory: int | None = None) -> Any:
    """A child with limits that runs some code: how it ended, its log, and whether the kernel counted it out."""

    async def story() -> tuple[ExitStatus, str, bool]:
        group = limiter.group(cpu, memory)
        log = folder / "child.log"
        environ = {**os.environ, "PYTHONPATH": f"{folder}:{Path(limiting.__file__).parents[2]}"}
        (folder / "limited.py").write_text(
            "from relight.proc import limiting\ndef main(payload, fds):\n"
            "    limiting.apply(payload['limits'])\n    exec(payload['code'])\n"
        )
        child = await spawn("limited:main", {"limits": dict(group.payload), "code": code}, [], log, environ)
        async with asyncio.timeout(30):
            status = await child.wait()
        counted = group.out_of_memory()
        group.close()
        return status, log.read_text(), counted

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(story())


GROWS = "x = bytearray(300 * 2**20); print('had it')"
MAPS = (
    "import mmap, tempfile\nfile = tempfile.TemporaryFile(); file.truncate(300 * 2**20)\n"
    "x = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ); print('mapped', x[0])"
)


@pytest.fixture(params=["cgroup", "rlimit"])
def limiter(request: pytest.FixtureRequest) -> Any:
    found = Limiter.find(groups=request.param == "cgroup")
    if request.param == "cgroup" and found.kind == "rlimit":
        pytest.skip("no control group may be made here")
    yield found
    found.close()


def test_who_needs_more_than_its_limit_ends(limiter: Limiter, tmp_path: Path) -> None:
    status, log, counted = run(limiter, GROWS, tmp_path, memory=2 * HUNDRED)
    assert not status.ok, log
    assert "had it" not in log
    assert counted == (limiter.kind != "rlimit")
    reason, said = why(f"the process ended by itself: {status}", log.encode(), was_ready=True, counted=counted)
    assert reason is Reason.OUT_OF_MEMORY
    assert "out of memory" in said


def test_who_stays_below_it_does_not(limiter: Limiter, tmp_path: Path) -> None:
    status, log, counted = run(limiter, GROWS, tmp_path, memory=6 * HUNDRED)
    assert status.ok, log
    assert "had it" in log
    assert not counted


def test_mapped_weights_do_not_count(limiter: Limiter, tmp_path: Path) -> None:
    status, log, _ = run(limiter, MAPS, tmp_path, memory=2 * HUNDRED)
    assert status.ok, log
    assert "mapped 0" in log


def test_the_cpu_limit_reaches_the_child(limiter: Limiter, tmp_path: Path) -> None:
    code = "import os; print(len(os.sched_getaffinity(0))); print(open('/proc/self/cgroup').read())"
    status, log, _ = run(limiter, code, tmp_path, cpu=0.5)
    assert status.ok, log
    cores = int(log.split()[0])
    if limiter.kind == "rlimit":
        assert cores == 1
    else:
        assert f"relight-{os.getpid()}" in log


def test_no_limit_is_no_group() -> None:
    assert Limiter.find(groups=False).group(None, None).payload == {}


def test_cores_are_taken_in_turns() -> None:
    limiter = Limiter("rlimit", {}, (0, 1, 2))
    assert [limiter.group(cpu, None).payload["cores"] for cpu in (1, 2, 0.2, 9)] == [[0], [1, 2], [0], [1, 2, 0]]


def second_tree(root: Path, controllers: str = "cpu memory", *, writable: bool = True) -> Path:
    """A tree of files that looks like control groups v2, as far as our code looks."""
    group = root / "user.slice"
    group.mkdir(parents=True)
    (group / "cgroup.controllers").write_text(controllers)
    (group / "cgroup.subtree_control").write_text("cpu memory" if writable else "")
    own = root / "own"
    own.write_text("0::/user.slice\n")
    return own


def test_version_two_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine here has it: what is written where, in a folder that has its shape."""
    monkeypatch.setattr(limiting, "_hand_down", lambda group: None)
    limiter = Limiter.find(tmp_path, second_tree(tmp_path))
    assert limiter.kind == "cgroup v2"
    group = limiter.group(0.25, HUNDRED)
    folder = tmp_path / "user.slice" / f"relight-{os.getpid()}" / "0"
    assert (folder / "cpu.max").read_text() == "25000 100000"
    assert (folder / "memory.max").read_text() == str(HUNDRED)
    assert group.payload == {"cgroups": [str(folder / "cgroup.procs")]}
    (folder / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert group.out_of_memory()


def test_without_the_controllers_there_is_no_group(tmp_path: Path) -> None:
    assert Limiter.find(tmp_path, second_tree(tmp_path, "pids")).kind == "rlimit"
    assert not list(tmp_path.glob("user.slice/relight-*"))


def test_groups_of_platforms_that_are_gone_are_removed() -> None:
    limiter = Limiter.find()
    if limiter.kind == "rlimit":
        pytest.skip("no control group may be made here")
    parent = limiter._parents["memory"]
    old = parent.with_name("relight-4194304")  # above any pid
    (old / "0").mkdir(parents=True)
    Limiter.find().close()
    assert not old.exists()


@pytest.mark.parametrize(
    ("said", "tail", "was_ready", "counted", "reason"),
    [
        ("killed by SIGKILL", b"", True, False, Reason.CRASHED),
        ("killed by SIGKILL", b"", True, True, Reason.OUT_OF_MEMORY),
        ("killed by SIGKILL", b"", False, True, Reason.OUT_OF_MEMORY),
        ("load failed: MemoryError", b"", False, False, Reason.OUT_OF_MEMORY),
        ("killed by SIGABRT", b"what():  std::bad_alloc\n", True, False, Reason.OUT_OF_MEMORY),
        ("exited with code 3", b"MemoryError was caught\nlater\nmuch later\n", True, False, Reason.CRASHED),
        ("exited with code 3", b"", False, False, Reason.LOAD_FAILED),
    ],
)
def test_why_a_process_ended(said: str, tail: bytes, was_ready: bool, counted: bool, reason: Reason) -> None:
    assert why(said, tail, was_ready=was_ready, counted=counted)[0] is reason
