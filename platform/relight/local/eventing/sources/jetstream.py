"""NatsJetStreamChannel: what is posted goes into a JetStream stream, and what the stream holds goes to Subscriptions.

So a channel is a source and a sink at once: programs that know nothing of Knative publish to the stream's subject, or
read from it. Names and the place of the server's address (ConfigMap ``knative-eventing/config-nats``) are Knative's.
Other than there, one consumer reads for all Subscriptions of a channel; each of these is as durable here as there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from relight.base.errors import BadInput, Problem
from relight.base.units import parse_duration
from relight.local.eventing import statuses
from relight.local.eventing.naming import hub_name, outgoing
from relight.local.eventing.publishing import Departures
from relight.local.eventing.secrets import Secrets, StoredSecrets, optional, referred
from relight.local.eventing.sources.feeding import BATCH, BLOCK, LAG_EVERY, Feed, Feeders, Line, Record
from relight.local.eventing.sources.messages import Message
from relight.local.eventing.world import Object, Uids, World
from relight.local.kube import kinds
from relight.local.kube.kinds import Kind
from relight.net.publishing.nats import Nats, NatsLink
from relight.net.publishing.publisher import Publisher
from relight.wire import cloudevents
from relight.wire.bindings import Carrier
from relight.wire.cloudevents import Event
from relight.wire.http import Headers

CONFIG = ("knative-eventing", "config-nats")
SETTINGS = "eventing-nats"
TYPE = "dev.knative.jetstream.event"
ACK_WAIT = 5.0
"""Seconds until NATS hands out a message again that was not acknowledged: so long what was on its way waits after a
kill. Writing a batch down takes milliseconds; what comes again while it is held up here is known."""
_STREAM = {
    "additionalSubjects": "subjects",
    "retention": "retention",
    "storage": "storage",
    "replicas": "num_replicas",
    "maxMsgs": "max_msgs",
    "maxBytes": "max_bytes",
    "maxConsumers": "max_consumers",
    "maxMsgSize": "max_msg_size",
    "maxAge": "max_age",
    "duplicateWindow": "duplicate_window",
    "discard": "discard",
}
"""``spec.stream.config`` by the client's names."""
_DELIVER = ("all", "last", "new", "last_per_subject", "by_start_sequence", "by_start_time")


@dataclass(frozen=True)
class Channel:
    """A channel, checked."""

    nats: Nats
    stream: str
    subject: str
    consumer: str
    source: str
    config: Mapping[str, Any]
    """Of the stream, where it is made here."""
    reading: Mapping[str, Any]
    """Of the consumer."""

    @classmethod
    def of(cls, obj: Object, nats: Nats) -> Channel:
        """BadInput names every wrong field."""
        metadata, spec = obj["metadata"], obj.get("spec") or {}
        namespace, name = metadata["namespace"], metadata["name"]
        stream = spec.get("stream") or {}
        subject = f"{namespace}.{name}._knative"
        problems: list[Problem] = []
        config = _config(stream.get("config") or {}, subject, problems)
        reading = _reading(spec.get("consumerConfigTemplate") or {}, problems)
        if problems:
            raise BadInput.of(problems)
        default = f"KN_{namespace}__{name}".replace("-", "_").upper()
        return cls(
            nats=nats,
            stream=str(stream.get("overrideName") or default),
            subject=subject,
            consumer=f"KN_{metadata['uid']}".replace("-", "").upper(),
            source=f"/apis/v1/namespaces/{namespace}/natsjetstreamchannels/{name}",
            config=config,
            reading=reading,
        )


class JetStreamChannels:
    """The reconciler."""

    kinds = (kinds.NATS_JETSTREAM_CHANNEL,)

    def __init__(self, world: World, feeders: Feeders, departures: Departures) -> None:
        self._world = world
        self._feeders = feeders
        self._departures = departures
        self._uids = Uids()

    async def look(self, kind: Kind, namespace: str, name: str, obj: Object | None) -> None:
        world = self._world
        hub, received = (namespace, hub_name(kind, name)), (namespace, outgoing(kind, name))
        gone = self._uids.replaced(kind, namespace, name, obj)
        if gone is not None:
            await self._feeders.forget(gone)
            await self._departures.close(gone, hub)
            world.table.remove_hub(received)
        if obj is None:
            return
        uid, title = obj["metadata"]["uid"], f"{name} ({kind.kind})"
        world.table.add_hub(received)
        problem = None
        try:
            channel = Channel.of(obj, self._nats(namespace))
            await self._departures.open(
                uid,
                title,
                hub,
                channel,
                lambda: Publisher(lambda: NatsLink(channel.nats, channel.subject), f"NATS {channel.subject}"),
            )
            line = Line(uid, namespace, name, channel, received, {})
            await self._feeders.run(line, lambda: _StreamFeed(channel), lambda: self._tell(namespace, name, None))
        except BadInput as error:
            problem = error.message
            await self._feeders.end(uid)
            await self._departures.pause(uid, title, hub)
        self._tell(namespace, name, problem)

    async def stop(self) -> None:
        """Feeds and publishers are stopped by those who own them."""

    def _nats(self, namespace: str) -> Nats:
        found = self._world.store.get(kinds.CONFIG_MAP, *CONFIG)
        text = ((found or {}).get("data") or {}).get(SETTINGS)
        where = f"ConfigMap {CONFIG[0]}/{CONFIG[1]}"
        if not text:
            raise BadInput.of([Problem(where, f"it is missing, or has no {SETTINGS}: it names the NATS server")])
        try:
            given = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise BadInput.of([Problem(where, f"{SETTINGS} is not YAML: {error}"[:200])]) from error
        if not isinstance(given, dict) or not given.get("url"):
            raise BadInput.of([Problem(where, f"{SETTINGS}: a url was expected")])
        return _connection(given, StoredSecrets(self._world.store, CONFIG[0]))

    def _tell(self, namespace: str, name: str, problem: str | None) -> None:
        world, kind = self._world, kinds.NATS_JETSTREAM_CHANNEL
        obj = world.store.get(kind, namespace, name)
        if obj is None:
            return
        sink = ((obj.get("spec") or {}).get("delivery") or {}).get("deadLetterSink")
        status = statuses.of_stream_channel(
            obj,
            world.hub_url(namespace, hub_name(kind, name)),
            world.address(namespace, sink),
            problem,
            world.stamp(),
            self._feeders.state(obj["metadata"]["uid"]),
        )
        world.store.set_status(kind, namespace, name, status)


def _connection(given: Mapping[str, Any], secrets: Secrets) -> Nats:
    """From ``eventing-nats``: url, and Secrets for user and password and for the server's CA."""
    options: dict[str, Any] = {}
    secret = str((((given.get("auth") or {}).get("secret")) or {}).get("name") or "")
    if secret:
        user, password = optional(secrets, secret, "username"), optional(secrets, secret, "password")
        token = optional(secrets, secret, "token")
        options = {"token": token} if token else {"user": user, "password": password}
    ca = referred(secrets, (given.get("tls") or {}).get("caCert"), "ca.crt")
    return Nats(str(given["url"]), options, ca)


def _config(given: Mapping[str, Any], subject: str, problems: list[Problem]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in given.items():
        field = _STREAM.get(name)
        if field is None:
            problems.append(Problem(f"spec.stream.config.{name}", "it is not taken here"))
        elif name in ("maxAge", "duplicateWindow"):
            found[field] = _seconds(f"spec.stream.config.{name}", value, problems)
        else:
            found[field] = value.lower() if isinstance(value, str) else value
    found["subjects"] = [subject, *map(str, found.get("subjects") or [])]
    return found


def _reading(given: Mapping[str, Any], problems: list[Problem]) -> dict[str, Any]:
    at = "spec.consumerConfigTemplate"
    policy = str(given.get("deliverPolicy") or "New")
    snake = "".join(f"_{char.lower()}" if char.isupper() else char for char in policy).lstrip("_")
    if snake not in _DELIVER:
        problems.append(Problem(f"{at}.deliverPolicy", f"New, All, Last and so on were expected, got {policy!r}"))
    wait = _seconds(f"{at}.ackWait", given["ackWait"], problems) if given.get("ackWait") else ACK_WAIT
    found: dict[str, Any] = {"deliver_policy": snake, "ack_wait": wait}
    for name, field in (("filterSubject", "filter_subject"), ("optStartSeq", "opt_start_seq")):
        if given.get(name) is not None:
            found[field] = given[name]
    if given.get("optStartTime"):
        found["opt_start_time"] = str(given["optStartTime"])
    return found


def _seconds(path: str, value: object, problems: list[Problem]) -> float:
    try:
        return parse_duration(str(value))
    except ValueError as error:
        problems.append(Problem(path, str(error)))
        return 0.0


class _StreamFeed(Feed):
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._connection: Any = None
        self._stream: Any = None
        self._consumer: Any = None
        self._given: list[Any] = []
        self._asked = float("-inf")
        self.lag: int | None = None

    async def open(self) -> None:
        from nats.js.api import ConsumerConfig, StreamConfig
        from nats.js.errors import NotFoundError

        channel = self._channel
        self._connection = await channel.nats.connect()
        self._stream = self._connection.jetstream()
        try:
            await self._stream.stream_info(channel.stream)
        except NotFoundError:
            await self._stream.add_stream(StreamConfig(name=channel.stream, **channel.config))
        try:
            await self._stream.consumer_info(channel.stream, channel.consumer)
        except NotFoundError:
            config = ConsumerConfig(durable_name=channel.consumer, max_ack_pending=BATCH, **channel.reading)
            await self._stream.add_consumer(channel.stream, config)
        self._consumer = await self._stream.pull_subscribe_bind(channel.consumer, channel.stream)

    async def read(self) -> Sequence[Record]:
        if self._connection.is_closed:
            raise ConnectionError("NATS closed the connection")
        await self._ask_lag()
        try:
            self._given = await self._consumer.fetch(BATCH, timeout=BLOCK)
        except TimeoutError:
            # Nothing came. The client raises its own error, which is one of these, and at times the bare one.
            return []
        return [self._record(message) for message in self._given]

    async def acknowledge(self, records: Sequence[Record]) -> None:
        for message in self._given:
            await message.ack()
        await self._connection.flush()

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    def _record(self, message: Any) -> Record:
        place = message.metadata.sequence.stream
        headers = {name.lower(): value for name, value in (message.headers or {}).items()}
        carrier = Carrier(headers, headers.get("content-type"), bytes(message.data))
        # The stream may be read under other names: an event keeps its own.
        mark, source = str(place), f"{self._channel.source}#{message.subject}"
        return Message(mark, carrier, mark, source, TYPE).record(_decode)

    async def _ask_lag(self) -> None:
        if time.monotonic() - self._asked < LAG_EVERY:
            return
        self._asked = time.monotonic()
        info = await self._consumer.consumer_info()
        self.lag = int(info.num_pending or 0) + int(info.num_ack_pending or 0)


def _decode(carrier: Carrier) -> Event | None:
    headers = Headers(carrier.headers)
    return None if cloudevents.mode(headers) == "none" else cloudevents.decode(headers, carrier.body)
