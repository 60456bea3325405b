"""RabbitmqSource: the messages of a queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from relight.base.errors import BadInput, Problem
from relight.base.ids import new_id
from relight.local.eventing.secrets import Secrets, optional
from relight.local.eventing.sources.feeding import BATCH, BLOCK, LAG_EVERY, Feed, Record
from relight.local.eventing.sources.messages import Message
from relight.local.eventing.sources.objects import Plan, overrides
from relight.local.eventing.world import Object
from relight.local.kube import kinds
from relight.net.publishing import rabbitmq
from relight.wire import bindings
from relight.wire.bindings import AMQP_PREFIXES, Carrier
from relight.wire.cloudevents import Event

TYPE = "dev.knative.rabbitmq.event"
TIMEOUT = 10.0
"""Seconds to connect."""
PORTS = {"amqp": 5672, "amqps": 5671}


class RabbitQueues:
    """As Knative's adapter reads a queue; whatever ``parallelism`` says, a batch is taken at once: it only has to be
    written down."""

    kind = kinds.RABBITMQ_SOURCE

    def plan(self, obj: Object, secrets: Secrets) -> Plan:
        spec, metadata = obj.get("spec") or {}, obj["metadata"]
        resources, reference = spec.get("rabbitmqResourcesConfig") or {}, spec.get("rabbitmqClusterReference") or {}
        queue, exchange = str(resources.get("queueName") or ""), str(resources.get("exchangeName") or "")
        predeclared = bool(resources.get("predeclared"))
        connection = reference.get("connectionSecret") or {}
        problems = []
        if not queue:
            problems.append(Problem("spec.rabbitmqResourcesConfig.queueName", "it is missing"))
        if not predeclared and not exchange:
            problems.append(Problem("spec.rabbitmqResourcesConfig.exchangeName", "it is missing"))
        if bool(reference.get("name")) == bool(connection.get("name")):
            problems.append(Problem("spec.rabbitmqClusterReference", "a name or a connectionSecret was expected"))
        if problems:
            raise BadInput.of(problems)
        if connection.get("name"):
            url = _url(secrets, str(connection["name"]), "uri", None, resources)
        else:
            # The Secret that RabbitMQ's cluster operator makes for a cluster.
            owner = str(reference.get("namespace") or metadata["namespace"])
            url = _url(secrets, f"{reference['name']}-default-user", "host", owner, resources)
        source = f"/apis/v1/namespaces/{metadata['namespace']}/rabbitmqsources/{metadata['name']}#{queue}"
        settings = {"url": url, "queue": queue, "exchange": "" if predeclared else exchange, "source": source}
        return Plan(((TYPE, source),), settings, overrides(spec))

    def feed(self, plan: Plan) -> Feed:
        return _RabbitFeed(plan.settings)


def _url(secrets: Secrets, name: str, field: str, namespace: str | None, resources: Mapping[str, Any]) -> str:
    """``amqp://USER:PASSWORD@HOST:PORT/VHOST`` from a Secret. A management URL (http) says nothing of AMQP's port."""
    given = secrets(name, field, namespace=namespace)
    parts = urlsplit(given if "://" in given else f"amqp://{given}")
    scheme = parts.scheme if parts.scheme in PORTS else "amqp"
    port = optional(secrets, name, "port", namespace=namespace)
    if not port:
        port = str(parts.port if parts.port and parts.scheme in PORTS else PORTS[scheme])
    user, password = (quote(secrets(name, key, namespace=namespace), safe="") for key in ("username", "password"))
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{user}:{password}@{host}:{port}/{quote(str(resources.get('vhost') or '/'), safe='')}"


class _RabbitFeed:
    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._connection: Any = None
        self._channel: Any = None
        self._came: asyncio.Queue[Any] = asyncio.Queue()
        """Messages, at most as many as the broker hands out unacknowledged; an exception when the connection ends."""
        self._last: Any = None
        """Of the batch that was read last."""
        self._asked = float("-inf")
        self.lag: int | None = None

    async def open(self) -> None:
        library, name = rabbitmq.client(), self._settings["queue"]
        self._connection = await library.connect(self._settings["url"], timeout=TIMEOUT)
        self._connection.close_callbacks.add(self._closed)
        self._channel = await self._connection.channel(publisher_confirms=False)
        self._channel.close_callbacks.add(self._closed)
        await self._channel.set_qos(prefetch_count=BATCH)
        if self._settings["exchange"]:
            await self._declare(library)
        queue = await self._channel.get_queue(name, ensure=True)
        await queue.consume(self._came.put)

    async def read(self) -> Sequence[Record]:
        await self._ask_lag()
        try:
            async with asyncio.timeout(BLOCK):
                messages = [await self._came.get()]
        except TimeoutError:
            return []
        while len(messages) < BATCH and not self._came.empty():
            messages.append(self._came.get_nowait())
        for message in messages:
            if isinstance(message, BaseException):
                raise message
        self._last = messages[-1]
        return [self._record(message) for message in messages]

    async def acknowledge(self, records: Sequence[Record]) -> None:
        # The last one's acknowledgement goes for all before it: they were handed out in this order.
        await self._last.ack(multiple=True)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    def _closed(self, _: Any, error: BaseException | None = None) -> None:
        self._came.put_nowait(error or ConnectionError("RabbitMQ closed the connection"))

    async def _declare(self, library: Any) -> None:
        """The exchange, unless it is there, and a durable queue that gets all of it."""
        name = self._settings["exchange"]
        probe = await self._connection.channel(publisher_confirms=False)
        try:
            exchange = await probe.get_exchange(name)
            await probe.close()
        except library.exceptions.ChannelNotFoundEntity:
            exchange = await self._channel.declare_exchange(name, library.ExchangeType.HEADERS, durable=True)
        queue = await self._channel.declare_queue(self._settings["queue"], durable=True)
        # "#" is every key of a topic exchange; a headers exchange asks for no header; a fanout one asks for nothing.
        await queue.bind(exchange.name, routing_key="#", arguments={"x-match": "all"})

    def _record(self, message: Any) -> Record:
        headers = {str(name): _text(value) for name, value in (message.headers or {}).items()}
        carrier = Carrier(headers, message.content_type or headers.get("content-type"), bytes(message.body))
        source = self._settings["source"]
        # Without an id nothing tells it from another message like it: it is not known when it comes again.
        id_ = message.message_id or new_id()
        attributes = {"subject": message.message_id or ""}
        return Message(id_, carrier, id_, source, TYPE, attributes, bool(message.redelivered)).record(_decode)

    async def _ask_lag(self) -> None:
        if time.monotonic() - self._asked < LAG_EVERY:
            return
        self._asked = time.monotonic()
        queue = await self._channel.declare_queue(self._settings["queue"], passive=True)
        self.lag = int(queue.declaration_result.message_count) + self._came.qsize()


def _decode(carrier: Carrier) -> Event | None:
    return bindings.decode(carrier, *AMQP_PREFIXES)


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value).lower() if isinstance(value, bool) else str(value)
