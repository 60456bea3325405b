"""Eventing, composed: log, ingress, dispatcher, and the reconcilers that follow the store's objects."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relight.base.errors import Overloaded
from relight.base.tasks import Tasks
from relight.local.eventing.addressing import Addresses
from relight.local.eventing.brokers import Brokers, Triggers
from relight.local.eventing.catalogue import Validation
from relight.local.eventing.channels import Channels, Subscriptions
from relight.local.eventing.dispatch import Dispatcher
from relight.local.eventing.flows import Flows
from relight.local.eventing.ingress import Ingress
from relight.local.eventing.inspecting import Inspection
from relight.local.eventing.log import EventLog, Limits
from relight.local.eventing.naming import SINKS
from relight.local.eventing.outlets import Outlets
from relight.local.eventing.pinging import Pings
from relight.local.eventing.publishing import Departures
from relight.local.eventing.sending import Sender
from relight.local.eventing.sinks import Sinks
from relight.local.eventing.sources.feeding import Feeders
from relight.local.eventing.sources.jetstream import JetStreamChannels
from relight.local.eventing.sources.kafka import KafkaTopics
from relight.local.eventing.sources.objects import Sources
from relight.local.eventing.sources.rabbitmq import RabbitQueues
from relight.local.eventing.sources.redis import RedisStreams
from relight.local.eventing.triggers import Subscription, Table
from relight.local.eventing.world import Reconciler, World
from relight.local.kube import kinds
from relight.local.kube.kinds import Kind
from relight.local.kube.store import ObjectStore
from relight.local.reconciling import Queue
from relight.local.recording import Recorder

log = logging.getLogger("relight.eventing")

EVENT_LIMIT = 2**20
"""Bytes of an event at most, as on Knative's brokers by default."""


@dataclass(frozen=True, order=True)
class _Key:
    kind: str
    namespace: str
    name: str


class Eventing:
    """The brokers of one machine. ``now`` gives seconds since 1970; ``token`` lets people look inside;
    ``schemas`` is where Brokers that validate find what is valid, unless they say otherwise."""

    def __init__(
        self,
        store: ObjectStore,
        path: Path,
        *,
        strict: bool = False,
        event_limit: int = EVENT_LIMIT,
        limits: Limits | None = None,
        token: str | None = None,
        schemas: Path | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._base = ""
        self._recorder = Recorder(store, "relight-broker")
        table = Table()
        addresses = Addresses(store, self.broker_url)
        validation = Validation(schemas, now)
        self._tasks = Tasks("eventing")
        self._queue: Queue[_Key] | None = None
        self.log = EventLog(path, limits)
        self._sender = Sender(event_limit)
        self.dispatcher = Dispatcher(
            self.log,
            table,
            self._sender,
            addresses.url,
            self.broker_url,
            on_warning=self._warn,
            check=validation.check,
            strict=strict,
            now=now,
        )
        self._ingress = Ingress(
            self.dispatcher.publish_then,
            event_limit,
            inspect=Inspection(self.log, table, self.dispatcher, token).answer,
            refused=lambda status: self.dispatcher.metrics.count("refused", str(status)),
            strict=strict,
        )
        outlets = Outlets(self.dispatcher, table)
        world = World(
            store,
            self.log,
            table,
            self.dispatcher,
            addresses,
            outlets,
            validation,
            self._recorder,
            self.broker_url,
            now,
        )
        self._feeders = Feeders(world)
        self._departures = Departures(self.dispatcher, table, self._sender)
        self._reconcilers: dict[Kind, Reconciler] = {
            kind: one
            for one in (
                Brokers(world),
                Channels(world),
                Sinks(world, self._departures),
                JetStreamChannels(world, self._feeders, self._departures),
                Triggers(world),
                Subscriptions(world),
                Flows(world),
                Pings(world),
                Sources(world, self._feeders, (RedisStreams(), KafkaTopics(), RabbitQueues())),
            )
            for kind in one.kinds
        }
        """By kind; what is referred to comes before what refers to it."""

    def broker_url(self, namespace: str, name: str) -> str:
        """Where events for a broker are posted."""
        return f"{self._base}/{namespace}/{name}"

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Open the log, listen, go on with what is pending, follow the store; the port that is listened on.

        A listener that answers 503 for a moment is kinder than none: the port is taken before deliveries begin, for
        they name the broker's address.
        """
        await self.log.start()
        await self._sender.start()
        try:
            bound = await self._ingress.start(host, port)
        except BaseException:
            await self.stop()
            raise
        self._base = f"http://{host}:{bound}"
        self._queue = Queue("eventing", self._look, self._tasks)
        watches = [(kind, self._store.watch(kind)) for kind in (*self._reconcilers, *_WATCHED)]
        # Everything is known before deliveries go on: what is pending for a Trigger that is not there is dropped.
        for kind in self._reconcilers:
            for obj in self._store.list(kind)[0]:
                await self._look(_key(kind, obj))
        await self.dispatcher.start()
        self._tasks.spawn(self._queue.run(), "reconcile")
        for kind, watch in watches:
            self._tasks.spawn(self._follow(kind, watch), f"watch-{kind.plural}")
        return bound

    async def stop(self) -> None:
        """From the door inward: listener, controller, deliveries; the log last, for the others write to it."""
        self.dispatcher.taps.end()
        await self._ingress.stop()
        await self._tasks.stop()
        for one in dict.fromkeys(self._reconcilers.values()):
            await one.stop()
        await self.dispatcher.stop()
        await self._departures.stop()
        await self._sender.stop()
        await self.log.stop()

    async def idle(self) -> None:
        """Wait until every change of an object that was seen has been acted on."""
        if self._queue is not None:
            await self._queue.idle()

    async def _follow(self, kind: Kind, watch: Any) -> None:
        """Mark what changes. A watch that fell behind is opened anew; it begins with all there is."""
        while True:
            try:
                async for change in watch:
                    self._changed(kind, change.object)
                return
            except Overloaded:
                log.warning("watch.behind kind=%s: listed again", kind.resource)
                watch = self._store.watch(kind)

    def _changed(self, kind: Kind, obj: dict[str, Any]) -> None:
        assert self._queue is not None
        key = _key(kind, obj)
        if kind in self._reconcilers:
            self._queue.mark(key)
        # Whatever has an address may be a subscriber or a sink, and a flow follows what it consists of.
        for other in _AFFECTED.get(kind, ()):
            for one in self._store.list(other)[0]:
                self._queue.mark(_key(other, one))

    async def _look(self, key: _Key) -> None:
        kind = next(one for one in self._reconcilers if one.kind == key.kind)
        obj = self._store.get(kind, key.namespace, key.name)
        await self._reconcilers[kind].look(kind, key.namespace, key.name, obj)

    def _warn(self, subscription: Subscription, reason: str, message: str) -> None:
        log.warning("trigger.warning trigger=%s reason=%s: %s", subscription, reason, message)
        trigger = self._store.get(kinds.TRIGGER, subscription.namespace, subscription.name)
        if trigger is not None:
            self._recorder.record(trigger, "Warning", reason, message)


_WATCHED = (kinds.SERVICE, kinds.SECRET, kinds.CONFIG_MAP)
"""What is only referred to."""
_BROKERED = (kinds.REDIS_STREAM_SOURCE, kinds.KAFKA_SOURCE, kinds.RABBITMQ_SOURCE)
_SOURCES = (kinds.PING_SOURCE, *_BROKERED)
_REFERRING = (kinds.TRIGGER, kinds.SUBSCRIPTION, *_SOURCES)
_AFFECTED: dict[Kind, tuple[Kind, ...]] = {
    kinds.SERVICE: (*_REFERRING, kinds.BROKER),
    kinds.BROKER: _REFERRING,
    kinds.CHANNEL: (*_REFERRING, kinds.SEQUENCE, kinds.PARALLEL),
    kinds.IN_MEMORY_CHANNEL: (*_REFERRING, kinds.SEQUENCE, kinds.PARALLEL),
    kinds.NATS_JETSTREAM_CHANNEL: (*_REFERRING, kinds.SEQUENCE, kinds.PARALLEL),
    **dict.fromkeys(SINKS, _REFERRING),
    kinds.SEQUENCE: _REFERRING,
    kinds.PARALLEL: _REFERRING,
    kinds.SUBSCRIPTION: (kinds.SEQUENCE, kinds.PARALLEL),
    kinds.SECRET: (*_BROKERED, *SINKS, kinds.NATS_JETSTREAM_CHANNEL),
    kinds.CONFIG_MAP: (kinds.NATS_JETSTREAM_CHANNEL,),
}
"""What has to be looked at when an object of a kind has changed."""


def _key(kind: Kind, obj: dict[str, Any]) -> _Key:
    return _Key(kind.kind, obj["metadata"]["namespace"], obj["metadata"]["name"])
