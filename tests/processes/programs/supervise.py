"""A platform in small, for tests that kill it or its zygote: prints JSON lines."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path

import uvloop

from relight.base.errors import PlatformError
from relight.net.listener import bind
from relight.proc.child import Child
from relight.proc.orphans import become_subreaper
from relight.proc.spawn import spawn
from relight.proc.zygote import Zygote


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


async def up(zygote: Zygote, log: Path, code: int) -> Child:
    """A child that drains, once it is up."""
    mine, its = os.pipe()
    child = await zygote.fork("targets:drain", {"code": code}, [its], log)
    os.close(its)
    await asyncio.to_thread(os.read, mine, 100)
    os.close(mine)
    return child


async def kill_the_zygote(folder: Path, subreaper: bool) -> None:
    """Children go on and are reaped with their status; forks fail with a reason."""
    if subreaper:
        become_subreaper()
    zygote = Zygote((), log_path=folder / "zygote.log")
    await zygote.start()
    draining = await up(zygote, folder / "child.log", 7)
    killed = await up(zygote, folder / "child.log", 0)
    with bind("127.0.0.1", 0) as listener:
        serving = await zygote.fork("targets:serve", {"answer": "y"}, [listener.fileno()], folder / "child.log")
        address = listener.getsockname()
    assert zygote.pid is not None
    os.kill(zygote.pid, signal.SIGKILL)
    refused = []
    for _ in range(2):  # once while it may not be noticed yet, once after
        try:
            await zygote.fork("targets:code", {"code": 0}, [], folder / "child.log")
        except PlatformError as error:
            refused.append(str(error))
    reader, writer = await asyncio.open_connection(*address)
    answer = await asyncio.wait_for(reader.read(1), 10)
    writer.close()
    draining.terminate()
    killed.kill()
    ends = [str(await asyncio.wait_for(child.wait(), 10)) for child in (draining, killed, serving)]
    await zygote.stop()
    say(alive=zygote.alive, refused=refused, answer=answer.decode(), ends=ends, children=children())


async def leave_programs_behind(folder: Path) -> None:
    """What a child leaves running ends with it and is reaped."""
    become_subreaper()
    zygote = Zygote((), log_path=folder / "zygote.log")
    await zygote.start()
    mine, its = os.pipe()
    child = await zygote.fork("targets:abandon", {}, [its], folder / "child.log")
    os.close(its)
    left = json.loads(await asyncio.to_thread(os.read, mine, 100))
    await asyncio.wait_for(child.wait(), 10)
    await zygote.stop()

    async def none_left() -> None:
        # the end of strangers can only be asked for
        while children() or any(Path(f"/proc/{pid}").exists() for pid in left):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    await asyncio.wait_for(none_left(), 10)
    say(left=left, children=children())


async def be_killed(folder: Path) -> None:
    """Start a zygote and wait to be killed by the test."""
    zygote = Zygote((), log_path=folder / "zygote.log")
    await zygote.start()
    mine, its = socket.socketpair()
    child = await zygote.fork("targets:drain", {"code": 0}, [its.fileno()], folder / "child.log")
    its.close()
    await asyncio.to_thread(mine.recv, 100)
    say(zygote=zygote.pid, child=child.pid)
    await asyncio.Event().wait()


async def tell_handlers(how: str, folder: Path) -> None:
    """Whether a child of this process, which has SIGINT ignored, can be interrupted."""
    mine, its = os.pipe()
    zygote = Zygote((), log_path=folder / "zygote.log")
    if how == "fork":
        await zygote.start()
        child = await zygote.fork("targets:describe", {"env": []}, [its], folder / "child.log")
    else:
        child = await spawn("targets:describe", {"env": []}, [its], folder / "child.log")
    os.close(its)
    said = json.loads(await asyncio.to_thread(os.read, mine, 100_000))
    await asyncio.wait_for(child.wait(), 10)
    await zygote.stop()
    say(interrupt=said["interrupt"])


def main(story: str, folder: Path) -> None:
    stories = {
        "subreaper": lambda: kill_the_zygote(folder, True),
        "no subreaper": lambda: kill_the_zygote(folder, False),
        "abandon": lambda: leave_programs_behind(folder),
        "interrupt fork": lambda: tell_handlers("fork", folder),
        "interrupt exec": lambda: tell_handlers("exec", folder),
        "be killed": lambda: be_killed(folder),
    }
    uvloop.run(stories[story]())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
