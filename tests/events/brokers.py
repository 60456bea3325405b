"""Message brokers as the tests beside this file see them: a server each, and what a producer and an operator do."""

from __future__ import annotations

import asyncio
import base64
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import servers

from relight.local.kube import kinds
from relight.local.kube.kinds import Kind
from relight.local.kube.store import ObjectStore
from relight.wire.cloudevents import Event

EVENT = Event(
    "7",
    "/ocr",
    "page.read",
    {"subject": "prüfung", "partitionkey": "p1", "datacontenttype": "application/json"},
    b'{"text": "abc"}',
)
"""What is published."""
_numbers = itertools.count()


@dataclass(frozen=True)
class Sent:
    """What a producer sends."""

    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str | None = None


def secret(store: ObjectStore, name: str, **values: str) -> None:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    store.create(kinds.SECRET, {"metadata": {"namespace": "default", "name": name}, "data": data})


class Broker:
    """One server; ``prepare`` begins with a new topic, queue or stream."""

    kind: Kind
    prefix = "ce-"
    """Of an event's attributes in a message's headers."""
    type: str

    def __init__(self, server: servers.Server) -> None:
        self.server = server
        self.topic = ""

    async def prepare(self) -> None:
        self.topic = f"pages{next(_numbers)}"

    def objects(self, store: ObjectStore) -> None:
        """What the source refers to."""

    def spec(self, sink: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    async def send(self, *messages: Sent) -> None:
        raise NotImplementedError

    def address(self) -> str:
        """The URL by which events are published there."""
        raise NotImplementedError

    async def open(self) -> int:
        """Messages that nobody has acknowledged."""
        raise NotImplementedError

    async def drained(self) -> None:
        while await self.open():  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    def down(self) -> None:
        self.server.kill()

    def up(self) -> None:
        self.server.start(servers.answers)

    def end(self) -> None:
        self.server.kill()


class RabbitMQ(Broker):
    kind = kinds.RABBITMQ_SOURCE
    type = "dev.knative.rabbitmq.event"

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.server.port}/"

    async def prepare(self) -> None:
        await super().prepare()
        import aio_pika

        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel()
            exchange = await channel.declare_exchange(self.topic, aio_pika.ExchangeType.TOPIC, durable=True)
            queue = await channel.declare_queue(self.topic, durable=True)
            await queue.bind(exchange, "#")

    def objects(self, store: ObjectStore) -> None:
        uri = f"127.0.0.1:{self.server.port}"
        secret(store, "rabbit", uri=uri, username="guest", password="guest")

    def spec(self, sink: dict[str, Any]) -> dict[str, Any]:
        return {
            "rabbitmqClusterReference": {"connectionSecret": {"name": "rabbit"}},
            "rabbitmqResourcesConfig": {"exchangeName": self.topic, "queueName": self.topic},
            "sink": sink,
        }

    async def send(self, *messages: Sent) -> None:
        import aio_pika

        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel()
            exchange = await channel.get_exchange(self.topic)
            made = [
                aio_pika.Message(
                    one.body,
                    headers=dict(one.headers),
                    content_type=one.content_type,
                    message_id=f"m{next(_numbers)}",
                    delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                )
                for one in messages
            ]
            await asyncio.gather(*(exchange.publish(message, "some.key") for message in made))

    def address(self) -> str:
        return f"{self.url}%2F?exchange={self.topic}&routing_key=read"

    async def open(self) -> int:
        """With a consumer that is given all there is, what is unacknowledged is not counted: it is counted after it."""
        import aio_pika

        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(self.topic, passive=True)
            return int(queue.declaration_result.message_count or 0)

    def end(self) -> None:
        super().end()
        servers.end_names(self.server)


class Kafka(Broker):
    kind = kinds.KAFKA_SOURCE
    prefix = "ce_"
    type = "dev.knative.kafka.event"

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def prepare(self) -> None:
        await super().prepare()
        from aiokafka.admin import AIOKafkaAdminClient, NewTopic

        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(self.topic, 2, 1)])
        await admin.close()

    def spec(self, sink: dict[str, Any]) -> dict[str, Any]:
        topics = {"bootstrapServers": [self.bootstrap], "topics": [self.topic]}
        return {**topics, "consumerGroup": self.topic, "sink": sink}

    async def send(self, *messages: Sent) -> None:
        import aiokafka

        async with aiokafka.AIOKafkaProducer(bootstrap_servers=self.bootstrap) as producer:
            for one in messages:
                headers = [(name, value.encode()) for name, value in one.headers.items()]
                if one.content_type:
                    headers.append(("content-type", one.content_type.encode()))
                await producer.send(self.topic, one.body, headers=headers)
            await producer.flush()

    def address(self) -> str:
        return f"kafka://{self.bootstrap}/{self.topic}"

    async def open(self) -> int:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.admin import AIOKafkaAdminClient

        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        committed = await admin.list_consumer_group_offsets(self.topic)
        await admin.close()
        async with AIOKafkaConsumer(bootstrap_servers=self.bootstrap) as consumer:
            ends = await consumer.end_offsets(list(committed))
        return sum(ends[partition] - found.offset for partition, found in committed.items())

    def down(self) -> None:
        self.server.stop()


class JetStream(Broker):
    """The source is a channel: what it takes from its stream goes to a Subscription."""

    kind = kinds.NATS_JETSTREAM_CHANNEL
    type = "dev.knative.jetstream.event"

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.server.port}"

    async def prepare(self) -> None:
        """A channel's subject belongs to one stream: that of the test before has to go."""
        await super().prepare()
        import nats

        connection = await nats.connect(self.url, allow_reconnect=False)
        stream = connection.jetstream()
        for one in await stream.streams_info():
            await stream.delete_stream(str(one.config.name))
        await connection.close()

    def objects(self, store: ObjectStore) -> None:
        settings = {"eventing-nats": f"url: {self.url}\n"}
        metadata = {"namespace": "knative-eventing", "name": "config-nats"}
        store.create(kinds.CONFIG_MAP, {"metadata": metadata, "data": settings})

    def spec(self, sink: dict[str, Any]) -> dict[str, Any]:
        config = {"storage": "File", "maxAge": "1h", "additionalSubjects": [f"{self.topic}.*"]}
        # What was on its way at a kill comes again after this time.
        reading = {"ackWait": "1s"}
        return {"stream": {"overrideName": self.topic.upper(), "config": config}, "consumerConfigTemplate": reading}

    async def send(self, *messages: Sent) -> None:
        import nats

        connection = await nats.connect(self.url, allow_reconnect=False)
        stream = connection.jetstream()
        for one in messages:
            headers = {**one.headers, **({"content-type": one.content_type} if one.content_type else {})}
            await stream.publish(f"{self.topic}.scanned", one.body, headers=headers or None)
        await connection.close()

    def address(self) -> str:
        return f"{self.url}/{self.topic}.read"

    async def open(self) -> int:
        import nats

        connection = await nats.connect(self.url, allow_reconnect=False)
        (consumer,) = await connection.jetstream().consumers_info(self.topic.upper())
        await connection.close()
        return int(consumer.num_pending or 0) + int(consumer.num_ack_pending or 0)


def start(name: str, folder: Path) -> Broker:
    """A broker by its name, up."""
    folder.mkdir()
    brokers: dict[str, tuple[type[Broker], Any]] = {
        "rabbitmq": (RabbitMQ, servers.rabbitmq_server),
        "kafka": (Kafka, servers.kafka_server),
        "jetstream": (JetStream, servers.nats_server),
    }
    made, server = brokers[name]
    broker = made(server(folder))
    broker.up()
    return broker
