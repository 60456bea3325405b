"""KafkaSource: the records of topics, read as a member of a consumer group."""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from relight.base.errors import BadInput, Problem
from relight.local.eventing.secrets import Secrets, referred
from relight.local.eventing.sources.feeding import BATCH, BLOCK, LAG_EVERY, LIMIT, Feed, Record
from relight.local.eventing.sources.messages import Message
from relight.local.eventing.sources.objects import Plan, needed, overrides
from relight.local.eventing.world import Object
from relight.local.kube import kinds
from relight.net.publishing.kafka import Kafka, client
from relight.wire import bindings
from relight.wire.bindings import Carrier
from relight.wire.cloudevents import Event, Value

TYPE = "dev.knative.kafka.event"
OFFSETS = ("earliest", "latest")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
TIMEOUT = 10.0
"""Seconds for the cluster to answer."""
JOINING = 30.0
"""Seconds to become a member of the group: another that ended badly is waited for."""
NEW_TOPICS = 10_000
"""Milliseconds between two looks at which topics and partitions there are."""
_NOT_A_NAME = re.compile(r"[^a-z0-9]")


class KafkaTopics:
    """As Knative's source reads topics; offsets are committed once their records are events on disk here."""

    kind = kinds.KAFKA_SOURCE

    def plan(self, obj: Object, secrets: Secrets) -> Plan:
        spec, metadata = obj.get("spec") or {}, obj["metadata"]
        problems = needed(spec, "bootstrapServers", "topics")
        offset = str(spec.get("initialOffset") or "latest")
        if offset not in OFFSETS:
            problems.append(Problem("spec.initialOffset", f"earliest or latest was expected, got {offset!r}"))
        if problems:
            raise BadInput.of(problems)
        kafka = connection(spec["bootstrapServers"], spec.get("net") or {}, secrets)
        where = f"/apis/v1/namespaces/{metadata['namespace']}/kafkasources/{metadata['name']}"
        topics = tuple(map(str, spec["topics"]))
        settings = {
            "kafka": kafka,
            "topics": topics,
            "group": str(spec.get("consumerGroup") or f"knative-kafka-source-{metadata['uid']}"),
            "member": f"relight-{metadata['uid']}",
            "offset": offset,
            "where": where,
        }
        return Plan(tuple((TYPE, f"{where}#{topic}") for topic in topics), settings, overrides(spec))

    def feed(self, plan: Plan) -> Feed:
        return _KafkaFeed(plan.settings)


def connection(servers: Sequence[str], net: Mapping[str, Any], secrets: Secrets) -> Kafka:
    """From ``spec.bootstrapServers`` and ``spec.net``, with what its Secrets hold."""
    sasl, tls = net.get("sasl") or {}, net.get("tls") or {}
    found: dict[str, Any] = {"servers": tuple(map(str, servers)), "tls": bool(tls.get("enable"))}
    if found["tls"]:
        found |= {
            "ca": referred(secrets, tls.get("caCert"), "ca.crt"),
            "certificate": referred(secrets, tls.get("cert"), "user.crt"),
            "key": referred(secrets, tls.get("key"), "user.key"),
        }
    if sasl.get("enable"):
        mechanism = (referred(secrets, sasl.get("type"), "saslType") or "PLAIN").upper()
        if mechanism not in MECHANISMS:
            known = ", ".join(MECHANISMS)
            raise BadInput.of([Problem("spec.net.sasl.type", f"one of {known} was expected, got {mechanism!r}")])
        found |= {
            "mechanism": mechanism,
            "user": referred(secrets, sasl.get("user"), "user"),
            "password": referred(secrets, sasl.get("password"), "password"),
        }
    return Kafka(**found)


class _KafkaFeed:
    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._consumer: Any = None
        self._next: dict[Any, int] = {}
        """Per partition, what is to be read after the batch that was read last."""
        self._reached: dict[Any, int] = {}
        """Per partition, how far the group has come, as far as that was asked for or done here."""
        self._asked = float("-inf")
        self._assigned = asyncio.Event()
        """Set when the group has given out partitions anew."""
        self.lag: int | None = None

    async def open(self) -> None:
        settings = self._settings
        options = await asyncio.to_thread(settings["kafka"].options)
        self._consumer = client().AIOKafkaConsumer(
            group_id=settings["group"],
            # A member that keeps its name takes its place again at once, also after kill -9.
            group_instance_id=settings["member"],
            enable_auto_commit=False,
            auto_offset_reset=settings["offset"],
            isolation_level="read_committed",
            max_partition_fetch_bytes=2 * LIMIT,
            metadata_max_age_ms=NEW_TOPICS,
            **options,
        )
        await self._consumer.start()
        self._consumer.subscribe(settings["topics"], listener=_listener(self._assigned))
        async with asyncio.timeout(JOINING):
            await self._assigned.wait()

    async def read(self) -> Sequence[Record]:
        if self._assigned.is_set():
            self._assigned.clear()
            self._reached.clear()
            await self._begin()
        found = await self._consumer.getmany(timeout_ms=int(BLOCK * 1000), max_records=BATCH)
        self._next = {partition: batch[-1].offset + 1 for partition, batch in found.items() if batch}
        if not self._next:
            await self._ask_lag()
        return [self._record(record) for batch in found.values() for record in batch]

    async def acknowledge(self, records: Sequence[Record]) -> None:
        async with asyncio.timeout(TIMEOUT):
            await self._consumer.commit(self._next)
        await self._ask_lag()

    async def close(self) -> None:
        if self._consumer is not None:
            await self._consumer.stop()

    async def _begin(self) -> None:
        """Where the group has read nothing yet, note where it begins: what comes from now on is not skipped, even if
        all ends before the first record."""
        for partition in self._consumer.assignment():
            if await self._consumer.committed(partition) is None:
                await self._consumer.commit({partition: await self._consumer.position(partition)})

    async def _ask_lag(self) -> None:
        """What is there beyond what is committed. The client mends its connections by itself: that it cannot is seen
        here."""
        if time.monotonic() - self._asked < LAG_EVERY:
            return
        self._asked = time.monotonic()
        async with asyncio.timeout(TIMEOUT):
            ends = await self._consumer.end_offsets(list(self._consumer.assignment()))
        self._reached |= self._next
        for partition in ends.keys() - self._reached.keys():
            self._reached[partition] = await self._consumer.committed(partition) or 0
        self.lag = sum(max(0, end - self._reached[partition]) for partition, end in ends.items())

    def _record(self, record: Any) -> Record:
        headers = {str(name): bytes(value or b"").decode("utf-8", "replace") for name, value in record.headers}
        carrier = Carrier(headers, headers.get("content-type"), bytes(record.value or b""))
        place = f"partition:{record.partition}/offset:{record.offset}"
        attributes: dict[str, Value] = {"subject": f"partition:{record.partition}#{record.offset}"}
        attributes |= {
            f"kafkaheader{name}": value
            for header, value in headers.items()
            if header != "content-type" and (name := _NOT_A_NAME.sub("", header.lower()))
        }
        if record.timestamp and record.timestamp > 0:
            moment = datetime.fromtimestamp(record.timestamp / 1000, UTC)
            attributes["time"] = moment.isoformat().replace("+00:00", "Z")
        keyed = _keyed(record.key)
        source = f"{self._settings['where']}#{record.topic}"
        message = Message(f"{record.topic}/{place}", carrier, place, source, TYPE, attributes | keyed)
        return message.record(lambda carrier: _decode(carrier, keyed))


def _listener(assigned: asyncio.Event) -> Any:
    """Tells when partitions were given out. What is read and not committed is read again by whoever has them next."""
    from aiokafka import ConsumerRebalanceListener

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            """Nothing is kept per partition."""

        def on_partitions_assigned(self, given: Any) -> None:
            assigned.set()

    return Listener()


def _decode(carrier: Carrier, keyed: Mapping[str, Value]) -> Event | None:
    event = bindings.decode(carrier, bindings.KAFKA)
    if event is None or not keyed or event.get("partitionkey") is not None:
        return event
    return event.replace(**keyed)


def _keyed(key: bytes | None) -> dict[str, Value]:
    """What a record's key says of its event: the order by key goes on from here."""
    if not key:
        return {}
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = base64.b64encode(key).decode()
    return {"key": text, "partitionkey": text}
