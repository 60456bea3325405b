"""The zygotes of the platform: one per set of preloaded modules, started ahead, replaced when it dies or code changes.

Two ways lead from changed code to a new zygote. A new revision looks before its first replica is forked, so that what
was just edited and deployed is what runs. Every few seconds somebody looks at all of them, and a new zygote takes over
once its imports are done; until then the old one forks on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from pathlib import Path

from relight.base.errors import Deadline, PlatformError
from relight.proc.zygote import Zygote

log = logging.getLogger("relight.local.serving")

COMMON = ("relight.sdk", "relight.runtime.replica", "relight.store.files")
"""What every function needs: each zygote has it imported."""
LOOKED_EVERY = 5.0
"""Seconds between two looks for changed code; one look reads the times of some thousand files."""
RETRIED_AFTER = 60.0
"""Seconds after which a zygote that could not be started is tried again: until then replicas are executed at once."""


@dataclass
class _Kept:
    task: asyncio.Task[Zygote]
    failed_at: float | None = None


class Zygotes:
    """All on one event loop; ``stop`` ends them. Replicas are stopped before, by their owners."""

    def __init__(self, log_path: Path) -> None:
        self._log_path = log_path
        self._kept: dict[tuple[str, ...], _Kept] = {}
        self._starting: set[asyncio.Task[Zygote]] = set()
        self._all: set[Zygote] = set()

    def prepare(self, preload: tuple[str, ...]) -> asyncio.Task[Zygote]:
        """Have a zygote for these modules; it is started once, and replaced when it died."""
        kept = self._kept.get(preload)
        if kept is None or _is_over(kept):
            kept = self._kept[preload] = _Kept(self._spawn(preload, None))
        return kept.task

    def renew(self, preload: tuple[str, ...]) -> None:
        """Whoever forks from now on gets what the code says now: the present zygote if that is still it."""
        present = self.prepare(preload)
        self._kept[preload] = _Kept(self._spawn(preload, present))

    async def watch(self) -> None:
        """Replace those whose code has changed, until cancelled."""
        while True:
            await asyncio.sleep(LOOKED_EVERY)
            for preload, kept in list(self._kept.items()):
                if not kept.task.done() or _is_over(kept) or _failed(kept.task):
                    continue
                zygote = kept.task.result()
                if not await asyncio.to_thread(zygote.is_stale):
                    continue
                successor = self._spawn(preload, None)
                await asyncio.wait([successor])
                if self._kept.get(preload) is kept and not _failed(successor):
                    self._kept[preload] = _Kept(successor)
                    await self._end(zygote)
                elif not _failed(successor):  # a new revision was quicker
                    await self._end(successor.result())

    async def stop(self) -> None:
        """Idempotent."""
        self._kept.clear()
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*map(self._end, list(self._all)))

    async def _end(self, zygote: Zygote) -> None:
        await zygote.stop()
        self._all.discard(zygote)

    def _spawn(self, preload: tuple[str, ...], present: asyncio.Task[Zygote] | None) -> asyncio.Task[Zygote]:
        name = f"zygote {','.join(preload)}"
        task = asyncio.get_running_loop().create_task(self._start(preload, present), name=name)
        self._starting.add(task)
        task.add_done_callback(self._started)
        return task

    def _started(self, task: asyncio.Task[Zygote]) -> None:
        self._starting.discard(task)
        if _failed(task) and not task.cancelled():
            log.warning("zygote.failed name=%s error=%s", task.get_name(), task.exception())

    async def _start(self, preload: tuple[str, ...], present: asyncio.Task[Zygote] | None) -> Zygote:
        if present is not None:
            await asyncio.wait([present])
            if not _failed(present):
                old = present.result()
                if old.alive and not await asyncio.to_thread(old.is_stale):
                    return old
                await self._end(old)
        self._log_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        zygote = Zygote((*COMMON, *preload), log_path=self._log_path)
        self._all.add(zygote)
        await zygote.start()
        log.info("zygote.ready modules=%s", ",".join(preload) or "-")
        return zygote


def _failed(task: asyncio.Task[Zygote]) -> bool:
    return task.cancelled() or task.exception() is not None


def _is_over(kept: _Kept) -> bool:
    """Whether to start another one: it died, or failed to start long enough ago."""
    if not kept.task.done():
        return False
    if not _failed(kept.task):
        return not kept.task.result().alive
    if kept.failed_at is None:
        kept.failed_at = time.monotonic()
    error = None if kept.task.cancelled() else kept.task.exception()
    lasting = isinstance(error, PlatformError | Deadline)
    return not lasting or time.monotonic() - kept.failed_at >= RETRIED_AFTER
