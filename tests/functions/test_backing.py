"""Milvus as a backing service: started once, kept, found again, and gone with its platform."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from relight.base.errors import BadInput, PlatformError
from relight.local import backing
from relight.local.backing import Backing


async def until_gone(pid: int) -> None:
    """Until a process that is not ours has ended."""
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            await asyncio.wait_for(backing._ended(pidfd), 20)
        finally:
            os.close(pidfd)


def recorded(folder: Path) -> dict[str, int]:
    return json.loads((folder / "services" / "milvus" / "server.json").read_text())  # type: ignore[no-any-return]


def test_who_asks_at_once_waits_for_one_start_and_its_port_stays(tmp_path: Path) -> None:
    async def story() -> None:
        service = Backing(tmp_path / "services", tmp_path / "logs")
        answers = await asyncio.gather(*[service.ensure("milvus") for _ in range(5)])
        assert len({answer["MILVUS_URI"] for answer in answers}) == 1
        pid = recorded(tmp_path)["pid"]
        await service.stop()
        await service.stop()
        assert not Path(f"/proc/{pid}").exists()
        with pytest.raises(PlatformError, match="the platform is stopping"):
            await service.ensure("milvus")
        again = Backing(tmp_path / "services", tmp_path / "logs")
        assert await again.ensure("milvus") == answers[0]
        await again.stop()

    asyncio.run(story())


def test_one_that_died_is_back_without_being_asked_for(tmp_path: Path) -> None:
    async def story() -> None:
        service = Backing(tmp_path / "services", tmp_path / "logs", restart_after=0.01)
        uri = (await service.ensure("milvus"))["MILVUS_URI"]
        port = int(uri.rpartition(":")[2])
        first = recorded(tmp_path)["pid"]
        os.kill(first, signal.SIGKILL)
        await until_gone(first)
        async with asyncio.timeout(30):
            while True:
                with suppress(OSError):
                    (await asyncio.open_connection("127.0.0.1", port))[1].close()
                    break
                await asyncio.sleep(0.05)
        assert recorded(tmp_path)["pid"] != first
        assert (await service.ensure("milvus"))["MILVUS_URI"] == uri
        await service.stop()

    asyncio.run(story())


def test_nothing_is_started_before_it_is_asked_for(tmp_path: Path) -> None:
    async def story() -> None:
        service = Backing(tmp_path / "services", tmp_path / "logs")
        await service.stop()
        assert list(tmp_path.iterdir()) == []

    asyncio.run(story())


def test_an_unknown_service(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no backing service 'redis'; there is milvus"):
        asyncio.run(Backing(tmp_path, tmp_path).ensure("redis"))


def test_a_folder_that_is_no_database_is_told_with_the_log(tmp_path: Path) -> None:
    async def story() -> None:
        data = tmp_path / "services" / "milvus" / "data"
        data.parent.mkdir(parents=True)
        data.write_text("not a folder")
        service = Backing(tmp_path / "services", tmp_path / "logs")
        with pytest.raises(PlatformError, match=r"ended at its start .*; see .*milvus\.log"):
            await service.ensure("milvus")
        await service.stop()

    asyncio.run(story())


def test_a_port_that_is_taken_meanwhile(tmp_path: Path) -> None:
    async def story() -> None:
        state = tmp_path / "services" / "milvus" / "server.json"
        state.parent.mkdir(parents=True)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            state.write_text(json.dumps({"pid": 0, "started": 0, "port": port}))
            service = Backing(tmp_path / "services", tmp_path / "logs")
            uri = (await service.ensure("milvus"))["MILVUS_URI"]
            assert not uri.endswith(f":{port}")
            await service.stop()

    asyncio.run(story())


PLATFORM = """
import asyncio, sys
from pathlib import Path
from relight.local.backing import Backing
async def main():
    home = Path(sys.argv[1])
    await Backing(home / "services", home / "logs").ensure("milvus")
    print("up", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@contextmanager
def platform(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another platform with its milvus up, for as long as it is let live."""
    argv = [sys.executable, "-c", PLATFORM, str(folder)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()


def test_it_goes_when_its_platform_is_killed(tmp_path: Path) -> None:
    with platform(tmp_path):
        pid = recorded(tmp_path)["pid"]
    asyncio.run(until_gone(pid))


def test_one_that_was_left_behind_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with platform(tmp_path):
        left = recorded(tmp_path)["pid"]
        # Stopped, it cannot notice that its platform goes, nor a SIGTERM; it has the database locked.
        os.kill(left, signal.SIGSTOP)
    monkeypatch.setattr(backing, "GRACE", 0.2)

    async def story() -> None:
        service = Backing(tmp_path / "services", tmp_path / "logs")
        await service.ensure("milvus")
        assert recorded(tmp_path)["pid"] != left
        await until_gone(left)
        await service.stop()

    asyncio.run(story())
