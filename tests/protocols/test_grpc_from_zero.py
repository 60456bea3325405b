"""Triton's gRPC client through the router to a function that does not run yet."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as aio
from programs.hosting import Running, start
from routing.rig import KEY, Rig, looped, rig, until
from runtime.test_replica import told

from relight.local.serving.types import Address, RevisionLimits

H2C = replace(RevisionLimits(), h2c=True)
AUTHORITY = [
    ("grpc.default_authority", "echo.default.localhost"),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]


async def woken(one: Rig, folder: Path, protocol: str = "grpc") -> Running:
    """What the autoscaler does when the gate wakes it: a process, and its address once it is ready."""
    await until(lambda: one.wakes == [KEY], "woken")
    program = await asyncio.to_thread(
        start, "replica", "slow_model", folder, RELIGHT_PROTOCOL=protocol, RELIGHT_MODEL="slow"
    )
    assert (await asyncio.to_thread(told, program))[0]["event"] == "ready"
    one.gate.add("r0", Address("127.0.0.1", program.port))
    return program


def client(one: Rig) -> aio.InferenceServerClient:
    return aio.InferenceServerClient(f"127.0.0.1:{one.port}", channel_args=AUTHORITY)


def slow(*seconds: float) -> list[triton.InferInput]:
    values = np.array(seconds, np.float32)
    return [triton.InferInput("seconds", [len(seconds)], "FP32").set_data_from_numpy(values)]


@looped
async def from_zero(folder: Path) -> None:
    async with rig(H2C) as one, client(one) as caller:
        asked = [asyncio.ensure_future(caller.infer("slow", slow(0.01 * number))) for number in range(8)]
        # Large enough to be stopped by every window on its way.
        large = asyncio.ensure_future(caller.infer("slow", slow(*[0.0] * 2_000_000)))
        await until(lambda: one.gate.held == 9, "held")
        program = await woken(one, folder)
        try:
            for number, answer in enumerate(await asyncio.gather(*asked)):
                assert answer.as_numpy("slept").tolist() == [pytest.approx(0.01 * number)]
            assert (await large).as_numpy("slept").shape == (2_000_000,)
            assert one.wakes == [KEY]
            assert [key for key, _, _ in one.firsts] == [KEY]
            assert await caller.is_model_ready("slow")
            with pytest.raises(triton.InferenceServerException) as raised:
                await caller.infer("other", slow(0))
            assert raised.value.status() == "StatusCode.NOT_FOUND"
            assert raised.value.message() == "there is no model 'other' here; 'slow' is served"
            last = asyncio.ensure_future(caller.infer("slow", slow(0.5)))
            cancelled = asyncio.ensure_future(caller.infer("slow", slow(0.7)))
            await until(lambda: one.gate.in_flight == 2, "both are under way")
            cancelled.cancel()
            await until(lambda: one.gate.in_flight == 1, "the cancelled one has left")
            program.terminate()
            assert (await last).as_numpy("slept").tolist() == [0.5]
            assert await asyncio.to_thread(program.process.wait, 10) == 0
        finally:
            program.kill()


def test_from_zero(tmp_path: Path) -> None:
    from_zero(tmp_path)


@looped
async def deadline() -> None:
    async with rig(H2C) as one, client(one) as caller:
        with pytest.raises(triton.InferenceServerException) as raised:
            await caller.infer("slow", slow(0), client_timeout=0.2)
        assert raised.value.status() == "StatusCode.DEADLINE_EXCEEDED"
        # It is not held any longer, and not run later.
        await until(lambda: one.gate.held == 0, "it has left")


def test_a_client_s_deadline_ends_the_wait() -> None:
    deadline()


@looped
async def nowhere() -> None:
    async with rig(H2C) as one:

        def call(authority: str) -> tuple[str, str]:
            with grpc.insecure_channel(
                f"127.0.0.1:{one.port}", options=[("grpc.default_authority", authority)]
            ) as channel:
                with pytest.raises(grpc.RpcError) as raised:
                    channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=5)
                return raised.value.code().name, raised.value.details()

        assert await asyncio.to_thread(call, "none.default.localhost") == (
            "NOT_FOUND",
            "no function default/none is deployed here, or none of its revisions has been ready yet",
        )
        assert await asyncio.to_thread(call, "localhost") == (
            "NOT_FOUND",
            "a gRPC call names its function by the authority: NAME.NAMESPACE.localhost",
        )


def test_a_call_that_names_no_function() -> None:
    nowhere()


@looped
async def http1() -> None:
    async with rig() as one, client(one) as caller:
        with pytest.raises(triton.InferenceServerException) as raised:
            await caller.is_server_live()
        assert raised.value.status() == "StatusCode.UNIMPLEMENTED"
        assert json.loads((await one.get("/")).body)["functions"]


def test_a_function_that_speaks_http1() -> None:
    http1()
