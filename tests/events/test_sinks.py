"""Events back to message brokers: what is posted to a sink is at the broker, also where that was down meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import servers
from events.brokers import EVENT, Kafka, secret, start
from events.rig import Machine, Subscriber, run
from runtime.serving import served

from relight import sdk
from relight.base.errors import BadInput
from relight.local.kube import kinds
from relight.net.publishing import urls
from relight.wire import bindings, cloudevents
from relight.wire.bindings import Carrier


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    broker = start("kafka", tmp_path_factory.mktemp("sinks") / "kafka")
    assert isinstance(broker, Kafka)
    yield broker
    broker.end()


async def sink(machine: Machine, kind: kinds.Kind, spec: dict[str, Any]) -> str:
    """A sink ``out``; what a Trigger's subscriber refers to it by, and its address."""
    machine.store.create(kind, {"metadata": {"namespace": "default", "name": "out"}, "spec": spec})
    obj = await machine.status(kind, "out")
    return str(obj["status"]["address"]["url"])


async def records(kafka: Kafka, count: int) -> list[Any]:
    import aiokafka

    async with aiokafka.AIOKafkaConsumer(
        kafka.topic, bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        return [await consumer.getone() for _ in range(count)]


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_kafka_sink(tmp_path: Path, kafka: Kafka, mode: str) -> None:
    """What a Trigger's function answers is a record with the event's key, while Kafka was down for a moment."""

    async def story() -> None:
        await kafka.prepare()
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            spec = {"bootstrapServers": [kafka.bootstrap], "topic": kafka.topic, "contentMode": mode}
            await sink(machine, kinds.KAFKA_SINK, spec)
            reference = {"apiVersion": "eventing.knative.dev/v1alpha1", "kind": "KafkaSink", "name": "out"}
            await machine.trigger("t", "page.read", subscriber.url, subscriber={"ref": reference})
            if mode == "binary":
                await asyncio.to_thread(kafka.down)
                assert await machine.post(EVENT) == 202
                await asyncio.to_thread(kafka.up)
            else:
                assert await machine.post(EVENT) == 202
            (record,) = await records(kafka, 1)
            assert record.key == b"p1"
            headers = {name: value.decode() for name, value in record.headers}
            carrier = Carrier(headers, headers.get("content-type"), record.value)
            event = bindings.decode(carrier, bindings.KAFKA)
            assert event is not None
            assert (event.id, event.source, event.json(), event.get("subject")) == (
                "7",
                "/ocr",
                {"text": "abc"},
                "prüfung",
            )
            assert ("ce_id" in headers) == (mode == "binary")

    # uvloop's close hangs at times after a Kafka client's connections were refused.
    run(story(), asyncio.new_event_loop)


def test_redis_stream_sink(tmp_path: Path) -> None:
    """With a password from a Secret; the address takes events over HTTP as a cluster's does."""
    folder = tmp_path / "redis"
    folder.mkdir()
    server = servers.redis_server(folder, "--requirepass", "geheim")
    server.start(servers.pings)

    async def story() -> None:
        async with Machine(tmp_path).up() as machine:
            secret(machine.store, "redis", password="geheim")
            spec = {"address": f"127.0.0.1:{server.port}", "stream": "out", "options": {"password": {"name": "redis"}}}
            url = await sink(machine, kinds.REDIS_STREAM_SINK, spec)
            assert url == f"{machine.url}/default/redisstreamsinks/out"
            assert await machine.post(EVENT, broker="redisstreamsinks/out") == 202
            await machine.settled()
            with redis.Redis(port=server.port, password="geheim") as client:
                ((_, fields),) = client.xrange("out")
            assert fields[b"id"] == b"7"
            assert fields[b"data"] == b'{"text": "abc"}'
            assert fields[b"subject"] == "prüfung".encode()

    try:
        run(story())
    finally:
        server.kill()


WRONG: list[tuple[kinds.Kind, dict[str, Any], str]] = [
    (kinds.KAFKA_SINK, {}, "spec.bootstrapServers: it is missing; spec.topic: it is missing"),
    (kinds.KAFKA_SINK, {"bootstrapServers": ["x:1"], "topic": "t", "contentMode": "loud"}, "binary or structured"),
    (
        kinds.KAFKA_SINK,
        {"bootstrapServers": ["x:1"], "topic": "t", "auth": {"secret": {"ref": {"name": "s"}}}},
        "Secret",
    ),
    (kinds.REDIS_STREAM_SINK, {"address": "http://x", "stream": "s"}, "redis:// or rediss://"),
]


@pytest.mark.parametrize(("kind", "spec", "message"), WRONG, ids=[one[2][:25] for one in WRONG])
def test_what_is_wrong_with_a_sink_is_told(
    tmp_path: Path, kind: kinds.Kind, spec: dict[str, Any], message: str
) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine:
            await sink(machine, kind, spec)
            obj = await machine.status(kind, "out")
            row = next(one for one in obj["status"]["conditions"] if one["type"] == "Ready")
            assert row["status"] == "False"
            assert message in row["message"]

    run(story())


BAD_URLS = ["http://x/y", "kafka://host:1", "nats://host", "redis://host:1/0", "amqp://host/%2F"]


@pytest.mark.parametrize("url", BAD_URLS)
def test_urls_that_name_no_topic_are_refused(url: str) -> None:
    with pytest.raises(BadInput):
        urls.publisher(url)


class Publish(sdk.Step):
    """The step of the documentation."""

    def load(self) -> None:
        self.publisher = sdk.EventPublisher(self.context.env["PUBLISH_TO"])

    def run(self, data: Any, event: sdk.Event | None) -> None:
        self.publisher.publish(event)

    def unload(self) -> None:
        self.publisher.close()


def test_a_step_publishes(tmp_path: Path) -> None:
    """While the broker is away the delivery is not done: the caller is told to come again."""
    folder = tmp_path / "redis"
    folder.mkdir()
    server = servers.redis_server(folder)
    headers, body = cloudevents.encode_binary(EVENT)

    @contextlib.contextmanager
    def request(port: int, body: bytes, **headers: str) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("POST", "/", body, {"content-type": "application/json"} | headers)
        yield connection.getresponse()
        connection.close()

    def post(port: int) -> int:
        with request(port, body or b"", **dict(headers)) as response:
            return response.status

    with served(Publish(), PUBLISH_TO=f"redis://127.0.0.1:{server.port}/0?stream=out") as one:
        assert post(one.port) == 503
        server.start(servers.pings)
        try:
            assert post(one.port) == 204
            with request(one.port, b"{}") as plain:
                assert (plain.status, b"a CloudEvent was expected" in plain.read()) == (400, True)
            with redis.Redis(port=server.port) as client:
                assert [fields[b"id"] for _, fields in client.xrange("out")] == [b"7"]
        finally:
            server.kill()


def test_what_a_sink_holds_waits_while_its_secret_is_missing(tmp_path: Path) -> None:
    """Over a restart too."""
    folder = tmp_path / "redis"
    folder.mkdir()
    server = servers.redis_server(folder, "--requirepass", "geheim")
    spec = {"address": f"127.0.0.1:{server.port}", "stream": "out", "options": {"password": {"name": "redis"}}}

    async def before() -> None:
        async with Machine(tmp_path).up() as machine:
            await sink(machine, kinds.REDIS_STREAM_SINK, spec)
            assert await machine.post(EVENT, broker="redisstreamsinks/out") == 202

    async def after() -> None:
        async with Machine(tmp_path).up() as machine:
            await machine.eventing.idle()
            assert machine.eventing.dispatcher.pending == 1
            secret(machine.store, "redis", password="geheim")
            await machine.settled()
            with redis.Redis(port=server.port, password="geheim") as client:
                assert client.xlen("out") == 1

    run(before())
    server.start(servers.pings)
    try:
        run(after())
    finally:
        server.kill()
