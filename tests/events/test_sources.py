"""Message brokers as sources, against real servers: what is sent, what is acknowledged when, what survives what."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from events.brokers import EVENT, Broker, JetStream, RabbitMQ, Sent
from events.rig import Machine, Subscriber, broker_program, run

from events import brokers
from relight.base.errors import NotReady
from relight.local.eventing.sources.feeding import MOST_NOTED, RECENT, still_noted
from relight.local.kube import kinds
from relight.local.kube.store import ObjectStore
from relight.net.publishing import urls

NAME = {"namespace": "default", "name": "s"}
ROUND = 150
"""Messages before the kill, and as many after it."""


@pytest.fixture(scope="module", params=["rabbitmq", "kafka", "jetstream"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    started = brokers.start(request.param, tmp_path_factory.mktemp("broker") / request.param)
    yield started
    started.end()


def create(broker: Broker, store: ObjectStore, uri: str) -> None:
    """The source, with what it refers to; its events go to ``uri``."""
    broker.objects(store)
    store.create(broker.kind, {"metadata": NAME, "spec": broker.spec({"uri": uri})})
    if broker.kind == kinds.NATS_JETSTREAM_CHANNEL:
        channel = {"apiVersion": broker.kind.api_version, "kind": broker.kind.kind, "name": "s"}
        spec = {"channel": channel, "subscriber": {"uri": uri}}
        store.create(kinds.SUBSCRIPTION, {"metadata": NAME, "spec": spec})


async def until(store: ObjectStore, kind: kinds.Kind, status: str) -> dict[str, Any]:
    """The source, once its condition Ready has a status."""
    watch = store.watch(kind, "default")
    async for change in watch:
        rows = (change.object.get("status") or {}).get("conditions") or ()
        if any(row["type"] == "Ready" and row["status"] == status for row in rows):
            watch.close()
            return change.object
    raise AssertionError("the store was closed")


async def reading(broker: Broker, machine: Machine, uri: str) -> None:
    await broker.prepare()
    create(broker, machine.store, uri)
    await until(machine.store, broker.kind, "True")
    await machine.eventing.idle()


def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask brokers at every read how they are, have little patience, and come again soon."""
    monkeypatch.setattr("relight.local.eventing.sources.feeding.LAST_PAUSE", 0.4)
    for module in ("rabbitmq", "kafka", "jetstream"):
        monkeypatch.setattr(f"relight.local.eventing.sources.{module}.LAG_EVERY", 0.0)
        monkeypatch.setattr(f"relight.local.eventing.sources.{module}.BLOCK", 0.2)
    monkeypatch.setattr("relight.local.eventing.sources.kafka.TIMEOUT", 1.0)


def numbered(*numbers: int) -> list[Sent]:
    return [Sent(json.dumps({"n": number}).encode(), content_type="application/json") for number in numbers]


def test_messages_become_events(tmp_path: Path, broker: Broker) -> None:
    """Plain ones, and those that are CloudEvents in either mode."""

    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            await reading(broker, machine, f"{subscriber.url}/s")
            attributes = {"specversion": "1.0", "id": "7", "source": "/scanner", "type": "page", "subject": "p1"}
            headers = {f"{broker.prefix}{name}": value for name, value in attributes.items()}
            whole = json.dumps(attributes | {"id": "8", "data": {"n": 8}}).encode()
            await broker.send(
                Sent(b'{"n": 6}', content_type="application/json"),
                Sent(b"\x00\xff", headers, "application/octet-stream"),
                Sent(whole, content_type="application/cloudevents+json"),
            )
            got = [one.event for one in await subscriber.until(3, "/s")]
            plain = next(one for one in got if one.type == broker.type)
            assert plain.json() == {"n": 6}
            assert plain.source.startswith("/apis/v1/namespaces/default/")
            assert broker.topic in plain.source
            binary = next(one for one in got if one.id == "7")
            assert (binary.data, binary.source, binary.get("subject")) == (b"\x00\xff", "/scanner", "p1")
            assert next(one for one in got if one.id == "8").json() == {"n": 8}
            await broker.drained()
            await machine.settled()
            assert len(subscriber.received) == 3

    run(story())


def test_events_that_are_published_come_back_as_they_were(tmp_path: Path, broker: Broker) -> None:
    """The other way round: what ``sdk.EventPublisher`` uses, each event confirmed by the broker."""

    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            await reading(broker, machine, f"{subscriber.url}/s")
            publisher = urls.publisher(broker.address())
            await publisher.publish(EVENT)
            (got,) = await subscriber.until(1, "/s")
            back = got.event
            assert (back.id, back.source, back.type, back.data) == (EVENT.id, EVENT.source, EVENT.type, EVENT.data)
            assert {name: back.get(name) for name in EVENT.attributes} == EVENT.attributes
            if isinstance(broker, JetStream):
                # The stream knows it by its id.
                await publisher.publish(EVENT)
                await publisher.publish(EVENT.replace(id="8"))
                assert [one.event.id for one in await subscriber.until(2, "/s")] == ["7", "8"]
            await publisher.close()
            if isinstance(broker, RabbitMQ):
                lost = urls.publisher(f"{broker.url}%2F?routing_key=nobody")
                with pytest.raises(NotReady, match="NO_ROUTE"):
                    await lost.publish(EVENT)
                await lost.close()

    run(story())


def test_what_cannot_be_an_event_is_a_dead_letter(tmp_path: Path, broker: Broker) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            await reading(broker, machine, f"{subscriber.url}/s")
            poisoned = {f"{broker.prefix}specversion": "1.0", f"{broker.prefix}id": "9"}
            await broker.send(*numbered(1), Sent(b"lost page", poisoned), *numbered(2))
            await subscriber.until(2, "/s")
            await broker.drained()
            (dead,) = await machine.eventing.log.dead()
            assert "no valid CloudEvent" in dead.reason
            assert "source" in dead.reason
            assert dead.stored.event.data == b"lost page"

    run(story())


def test_the_broker_comes_back(tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker ends and starts again, and messages wait on both sides: none is lost, none comes twice."""
    quickly(monkeypatch)

    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            await reading(broker, machine, f"{subscriber.url}/s")
            await broker.send(*numbered(1))
            await subscriber.until(1, "/s")
            await broker.drained()
            await asyncio.to_thread(broker.down)
            try:
                obj = await until(machine.store, broker.kind, "False")
            finally:
                await asyncio.to_thread(broker.up)
            assert "BrokerFailed" in {row.get("reason") for row in obj["status"]["conditions"]}
            await broker.send(*numbered(2))
            got = await subscriber.until(2, "/s")
            assert [one.event.json()["n"] for one in got] == [1, 2]
            await broker.drained()
            await machine.settled()
            assert len(subscriber.received) == 2

    # uvloop's close hangs at times after a Kafka client's connections were refused.
    run(story(), asyncio.new_event_loop)


def test_resumes_after_kill_9(tmp_path: Path, broker: Broker) -> None:
    """The platform is killed while it reads: every message becomes an event, none becomes two."""

    async def story() -> None:
        async with Subscriber().listening() as subscriber:
            await broker.prepare()
            store = ObjectStore.open(tmp_path / "objects.db")
            create(broker, store, f"{subscriber.url}/s")
            store.close()
            awaited, sent = f"{broker.kind.kind}/s", set(range(2 * ROUND))
            async with asyncio.TaskGroup() as tasks, broker_program(tmp_path, subscriber.url, awaited):
                tasks.create_task(broker.send(*numbered(*range(ROUND))))
                await subscriber.until(20, "/s")
            async with broker_program(tmp_path, subscriber.url, awaited):
                await broker.send(*numbered(*range(ROUND, 2 * ROUND)))
                while not {one.event.json()["n"] for one in subscriber.received} >= sent:
                    await subscriber.until(len(subscriber.received) + 1, "/s")
                await broker.drained()
            # What was on its way at a kill may have come once more, from the log; but each message entered it once.
            events = {one.event.id: one.event.json()["n"] for one in subscriber.received}
            database = sqlite3.connect(tmp_path / "events.db")
            entered = database.execute("SELECT id, event FROM hops UNION SELECT id, seq FROM events").fetchall()
            database.close()
            assert sorted(events[id_] for id_, _ in entered) == sorted(sent)

    run(story())


def test_how_far_behind_a_source_is(tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lag is a metric; while events cannot be written down here, it grows."""
    quickly(monkeypatch)

    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            await reading(broker, machine, f"{subscriber.url}/s")
            await broker.send(*numbered(1))
            await subscriber.until(1, "/s")
            await broker.drained()
            while True:
                async with machine.session.get(f"{machine.url}/metrics") as response:
                    lines = (await response.text()).splitlines()
                if 'relight_source_lag{namespace="default",source="s"} 0.0' in lines:
                    return
                await asyncio.sleep(0.05)

    run(story())


MARKS = [f"m{number}" for number in range(RECENT + 50)]
MANY = [f"n{number}" for number in range(MOST_NOTED + 5)]
STILL = [
    pytest.param(MARKS, set(), MARKS, id="nothing-is-acknowledged"),
    pytest.param(MARKS, set(MARKS), MARKS[50:], id="the-last-of-what-was"),
    pytest.param(["old", *MARKS], set(MARKS), ["old", *MARKS[50:]], id="what-was-not-stays"),
    pytest.param(MANY, set(), MANY[5:], id="bound"),
]


@pytest.mark.parametrize(("noted", "confirmed", "kept"), STILL)
def test_what_stays_noted(noted: list[str], confirmed: set[str], kept: list[str]) -> None:
    assert still_noted(noted, confirmed) == kept
