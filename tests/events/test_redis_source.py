"""RedisStreamSource against a real Redis: what is sent, what is acknowledged when, what survives what."""

from __future__ import annotations

import asyncio
import base64
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import servers
from events.rig import Machine, Subscriber, broker_program, run

from relight.base.errors import BadInput
from relight.local.eventing.sources.redis import RedisStreams
from relight.local.kube import kinds
from relight.local.kube.store import ObjectStore


@pytest.fixture
def server(tmp_path: Path) -> Iterator[servers.Server]:
    folder = tmp_path / "redis"
    folder.mkdir()
    started = servers.redis_server(folder)
    started.start(servers.pings)
    yield started
    started.kill()


@pytest.fixture
def client(server: servers.Server) -> Iterator[redis.Redis]:
    connection = redis.Redis(port=server.port)
    yield connection
    connection.close()


def spec(server: servers.Server, sink: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"address": f"redis://127.0.0.1:{server.port}", "stream": "pages", "group": "g", "sink": sink, **more}


BROKER = {"ref": {"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "rec"}}


async def make(store: ObjectStore, spec: dict[str, Any]) -> dict[str, Any]:
    """Create the source and wait until it reads."""
    store.create(kinds.REDIS_STREAM_SOURCE, {"metadata": {"namespace": "default", "name": "r"}, "spec": spec})
    return await until_ready(store)


async def until_ready(store: ObjectStore) -> dict[str, Any]:
    watch = store.watch(kinds.REDIS_STREAM_SOURCE, "default")
    async for change in watch:
        rows = (change.object.get("status") or {}).get("conditions") or ()
        if any(row["type"] == "Ready" and row["status"] == "True" for row in rows):
            watch.close()
            return change.object
    raise AssertionError("the store was closed")


async def acknowledged(client: redis.Redis) -> None:
    """Wait until the group has nothing pending and nothing to read."""
    while True:
        (group,) = client.xinfo_groups("pages")
        if group["pending"] == 0 and group["lag"] == 0:
            return
        await asyncio.sleep(0.01)


def added(client: redis.Redis, count: int) -> set[str]:
    """The ids of so many new entries."""
    with client.pipeline() as pipe:
        for number in range(count):
            pipe.xadd("pages", {"n": str(number)})
        return {id_.decode() for id_ in pipe.execute()}


def test_entries_become_events(tmp_path: Path, server: servers.Server, client: redis.Redis) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            await machine.trigger("t", "dev.knative.sources.redisstream", f"{subscriber.url}/t")
            overrides = {"ceOverrides": {"extensions": {"team": "ocr"}}}
            obj = await make(machine.store, spec(server, BROKER, **overrides))
            assert obj["status"]["sinkUri"] == f"{machine.url}/default/rec"
            ids = [client.xadd("pages", {"page": str(n), "text": "é"}).decode() for n in range(3)]
            got = await subscriber.until(3, "/t")
            assert sorted(one.event.id for one in got) == sorted(ids)
            first = next(one.event for one in got if one.event.id == ids[0])
            assert first.source == f"redis://127.0.0.1:{server.port}/pages"
            assert first.json() == ["page", "0", "text", "é"]
            assert first.get("team") == "ocr"
            await acknowledged(client)
            await machine.settled()
            assert len(subscriber.received) == 3

    run(story())


def test_nothing_is_acknowledged_before_it_is_on_disk(
    tmp_path: Path, server: servers.Server, client: redis.Redis
) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            await machine.trigger("t", "dev.knative.sources.redisstream", f"{subscriber.url}/t")
            await make(machine.store, spec(server, BROKER))
            log, held = machine.eventing.log, []
            accept = log.accept_then
            log.accept_then = lambda *arguments: held.append(arguments)  # type: ignore[method-assign]
            client.xadd("pages", {"a": "1"})
            while not held:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert client.xinfo_groups("pages")[0]["pending"] == 1
            assert subscriber.received == []
            log.accept_then = accept  # type: ignore[method-assign]
            for arguments in held:
                accept(*arguments)
            await subscriber.until(1, "/t")
            await acknowledged(client)

    run(story())


def test_what_cannot_be_an_event_is_a_dead_letter(tmp_path: Path, server: servers.Server, client: redis.Redis) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            await make(machine.store, spec(server, {"uri": f"{subscriber.url}/s"}))
            client.xadd("pages", {"good": "1"})
            bad = client.xadd("pages", {"raw": b"\xff\xfe"}).decode()
            large = client.xadd("pages", {"large": b"x" * (2**20 + 1)}).decode()
            client.xadd("pages", {"good": "2"})
            await subscriber.until(2, "/s")
            await acknowledged(client)
            dead = {one.id: one for one in await machine.eventing.log.dead()}
            assert set(dead) == {bad, large}
            assert "not UTF-8" in dead[bad].reason
            assert dead[bad].stored.event.data == b"raw\0\xff\xfe"
            assert "larger than" in dead[large].reason

    run(story())


def test_the_broker_comes_back(tmp_path: Path, server: servers.Server, client: redis.Redis) -> None:
    """Redis is killed, and events wait on both sides: nothing is lost, nothing comes twice."""

    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            await make(machine.store, spec(server, {"uri": f"{subscriber.url}/s"}))
            client.xadd("pages", {"n": "1"})
            await subscriber.until(1, "/s")
            await acknowledged(client)
            server.kill()
            watch = machine.store.watch(kinds.REDIS_STREAM_SOURCE, "default")
            async for change in watch:
                row = next(one for one in change.object["status"]["conditions"] if one["type"] == "Deployed")
                if row["status"] == "False":
                    assert row["reason"] == "BrokerFailed"
                    watch.close()
            server.start(servers.pings)
            client.xadd("pages", {"n": "2"})
            await until_ready(machine.store)
            got = await subscriber.until(2, "/s")
            assert [one.event.json() for one in got] == [["n", "1"], ["n", "2"]]
            await machine.settled()
            assert len(subscriber.received) == 2

    run(story())


def test_resumes_after_kill_9(tmp_path: Path, server: servers.Server, client: redis.Redis) -> None:
    """The platform is killed while it reads: every entry becomes an event, none becomes two."""

    async def story() -> None:
        async with Subscriber().listening() as subscriber:
            store = ObjectStore.open(tmp_path / "objects.db")
            metadata = {"namespace": "default", "name": "r"}
            sink = {"uri": f"{subscriber.url}/s"}
            store.create(kinds.REDIS_STREAM_SOURCE, {"metadata": metadata, "spec": spec(server, sink)})
            store.close()
            client.xgroup_create("pages", "g", id="$", mkstream=True)
            async with broker_program(tmp_path, subscriber.url):
                sent = added(client, 150)
                await subscriber.until(20, "/s")
            async with broker_program(tmp_path, subscriber.url):
                sent |= added(client, 150)
                await acknowledged(client)
                while not {one.event.id for one in subscriber.received} >= sent:
                    await subscriber.until(len(subscriber.received) + 1, "/s")
            # What was on its way at a kill may have come once more, from the log; but each entry entered it once.
            assert {one.event.id for one in subscriber.received} == sent
            database = sqlite3.connect(tmp_path / "events.db")
            entered = database.execute("SELECT id, event FROM hops UNION SELECT id, seq FROM events").fetchall()
            database.close()
            assert sorted(id_ for id_, _ in entered) == sorted(sent)

    run(story())


def test_passwords_come_from_secrets_and_go_nowhere(tmp_path: Path) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    server = servers.redis_server(folder, "--requirepass", "geheim")
    server.start(servers.pings)
    try:

        async def story() -> None:
            async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
                given = spec(server, {"uri": f"{subscriber.url}/s"}, dialOptions={"password": {"name": "redis"}})
                machine.store.create(
                    kinds.REDIS_STREAM_SOURCE, {"metadata": {"namespace": "default", "name": "r"}, "spec": given}
                )
                obj = await machine.status(kinds.REDIS_STREAM_SOURCE, "r")
                row = next(one for one in obj["status"]["conditions"] if one["type"] == "Ready")
                assert "there is no Secret default/redis" in row["message"]
                data = {"password": base64.b64encode(b"geheim").decode()}
                machine.store.create(
                    kinds.SECRET, {"metadata": {"namespace": "default", "name": "redis"}, "data": data}
                )
                ready = await until_ready(machine.store)
                assert "geheim" not in str(ready)
                with redis.Redis(port=server.port, password="geheim") as client:
                    client.xadd("pages", {"a": "1"})
                (got,) = await subscriber.until(1, "/s")
                assert "geheim" not in str(got)

        run(story())
    finally:
        server.kill()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "spec.address: it is missing; spec.stream: it is missing"),
    ({"address": "http://x", "stream": "s"}, "redis:// or rediss://"),
    ({"address": "x:1", "stream": "s", "dialOptions": {"cert": {"secretKeyRef": {}}}}, "dialOptions.cert"),
]


@pytest.mark.parametrize(("given", "message"), WRONG, ids=[one[1][:30] for one in WRONG])
def test_what_is_wrong_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        RedisStreams().plan({"metadata": {"uid": "u"}, "spec": given}, lambda name, key: "")


def test_credentials_in_the_address_stay_there() -> None:
    obj = {"metadata": {"uid": "u"}, "spec": {"address": "rediss://me:pw@host:6380/2", "stream": "s"}}
    plan = RedisStreams().plan(obj, lambda name, key: "")
    assert plan.attributes == (("dev.knative.sources.redisstream", "rediss://host:6380/2/s"),)
    assert plan.settings["group"] == "relight-u"
