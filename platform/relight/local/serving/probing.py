"""A replica's probes, as its pod spec says: startup, then readiness and liveness for as long as it lives.

A replica has said that it is ready before the first probe is made, so a probe that only asks whether its port is open
(Knative's default) is not made at all. Until a replica is ready its readiness is asked for every 50 ms, as by Knative's
queue-proxy, for a cold start waits for it; from then on, and for liveness, with the probe's own period.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from relight.base.errors import LoadFailed
from relight.local.serving.probes import Probe, Probes
from relight.local.serving.types import Address
from relight.net.probing import connect, execute, http_get

EAGER = 0.05
"""Seconds between two probes of a replica that is not ready yet."""


Check = Callable[[Probe], Awaitable[str | None]]
"""Makes a probe once: None, or what is wrong."""


def checker(probes: Probes, address: Address, env: Mapping[str, str], folder: str) -> Check:
    async def check(probe: Probe) -> str | None:
        if probe.command:
            return await execute(probe.command, env, folder, probe.timeout)
        if probe.http is not None:
            asked = probe.http
            return await http_get(
                str(asked.get("host") or address.host),
                probes.port(asked.get("port"), address.port),
                str(asked.get("path") or "/"),
                _headers(asked.get("httpHeaders") or ()),
                probe.timeout,
                secure=asked.get("scheme") == "HTTPS",
            )
        asked = probe.tcp or {}
        return await connect(
            str(asked.get("host") or address.host), probes.port(asked.get("port"), address.port), probe.timeout
        )

    return check


def _headers(said: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [(str(one.get("name")), str(one.get("value", ""))) for one in said]


async def until_ready(probes: Probes, check: Check) -> None:
    """Until startup and readiness have succeeded; who waits has a deadline of its own.

    LoadFailed where the startup probe has not succeeded in all its tries.
    """
    clock = asyncio.get_running_loop().time
    for probe in (probes.startup, probes.readiness):
        if probe is None:
            continue
        await asyncio.sleep(probe.delay)
        successes, latest = 0, clock() + probe.failures * probe.period
        while successes < probe.successes:
            wrong = await check(probe)
            successes = 0 if wrong else successes + 1
            if wrong and probe is probes.startup and clock() > latest:
                raise LoadFailed(f"startup probe: {wrong}")
            if successes < probe.successes:
                await asyncio.sleep(EAGER)


Turned = Callable[[bool, str], None]
"""Told when a probe fails, with the reason, and when it is well again."""


def watches(
    probes: Probes, check: Check, readiness: Turned, liveness: Turned
) -> dict[str, Coroutine[None, None, None]]:
    """What watches a replica that is ready, by name; nothing where it has no such probe."""
    found = {"readiness": (probes.readiness, readiness), "liveness": (probes.liveness, liveness)}
    return {name: watch(probe, check, turned) for name, (probe, turned) in found.items() if probe is not None}


async def watch(probe: Probe, check: Check, turned: Turned) -> None:
    """Probe a replica that is ready until cancelled."""
    well, failures, successes = True, 0, 0
    await asyncio.sleep(probe.delay)
    while True:
        wrong = await check(probe)
        failures, successes = (failures + 1, 0) if wrong else (0, successes + 1)
        if well and failures >= probe.failures:
            well = False
            turned(False, wrong or "")
        elif not well and successes >= probe.successes:
            well = True
            turned(True, "")
        await asyncio.sleep(probe.period)
