"""The platform's zygotes: replaced when they die or their code changes, and no storm of starts where they cannot be."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from relight.base.errors import PlatformError
from relight.local.serving import zygotes
from relight.local.serving.zygotes import Zygotes
from relight.proc.zygote import Zygote

DEADLINE = 20.0
PRELOAD = ("preloaded",)


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that zygotes preload."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(zygotes, "COMMON", ())
    module = tmp_path / "preloaded.py"
    module.write_text("x = 1\n")
    return module


def run(story: Callable[[Zygotes], Coroutine[Any, Any, None]], folder: Path) -> None:
    async def whole() -> None:
        kept = Zygotes(folder / "zygote.log")
        try:
            await story(kept)
        finally:
            await kept.stop()
        assert not kept._all

    asyncio.run(whole())


async def ready(kept: Zygotes) -> Zygote:
    return await asyncio.wait_for(kept.prepare(PRELOAD), DEADLINE)


def test_one_that_died_is_replaced(code: Path, tmp_path: Path) -> None:
    async def story(kept: Zygotes) -> None:
        first = await ready(kept)
        assert await ready(kept) is first
        assert first.pid is not None
        assert first._process is not None
        os.kill(first.pid, 9)
        await asyncio.wait_for(first._process.wait(), DEADLINE)
        while first.alive:  # noqa: ASYNC110 - its end is read from its socket in a turn of the loop
            await asyncio.sleep(0)
        second = await ready(kept)
        assert second.alive
        assert second is not first

    run(story, tmp_path)


def test_a_new_revision_gets_the_code_as_it_is_now(code: Path, tmp_path: Path) -> None:
    async def story(kept: Zygotes) -> None:
        first = await ready(kept)
        kept.renew(PRELOAD)
        assert await ready(kept) is first
        code.write_text("x = 22\n")
        kept.renew(PRELOAD)
        second = await ready(kept)
        assert second is not first
        assert (first.alive, second.alive) == (False, True)

    run(story, tmp_path)


def test_changed_code_is_noticed_without_a_new_revision(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygotes, "LOOKED_EVERY", 0.01)

    async def story(kept: Zygotes) -> None:
        first = await ready(kept)
        watching = asyncio.get_running_loop().create_task(kept.watch())
        code.write_text("x = 22\n")

        async def replaced() -> None:
            while await ready(kept) is first or first.alive:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        await asyncio.wait_for(replaced(), DEADLINE)
        watching.cancel()
        assert not (await ready(kept)).is_stale()

    run(story, tmp_path)


def test_code_that_cannot_be_forked_is_tried_again_later(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code.write_text("import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n")

    async def story(kept: Zygotes) -> None:
        first = kept.prepare(PRELOAD)
        with pytest.raises(PlatformError, match="cannot fork safely"):
            await first
        assert kept.prepare(PRELOAD) is first
        monkeypatch.setattr(zygotes, "RETRIED_AFTER", 0.0)
        code.write_text("x = 1\n")
        assert (await ready(kept)).alive

    run(story, tmp_path)
