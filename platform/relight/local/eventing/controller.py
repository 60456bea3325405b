"""Brokers and Triggers come alive: the store's objects become the broker's table, and get their status.

``Eventing`` composes the parts: log, ingress, dispatcher and this controller, which is all that knows the store.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relight.base.errors import BadInput, Overloaded
from relight.base.tasks import Tasks
from relight.decide.filters import Filter
from relight.local.eventing import statuses
from relight.local.eventing.addressing import Addresses
from relight.local.eventing.dispatch import Dispatcher
from relight.local.eventing.ingress import Ingress
from relight.local.eventing.log import EventLog
from relight.local.eventing.sending import Sender
from relight.local.eventing.triggers import Subscription, Table
from relight.local.kube import kinds
from relight.local.kube.kinds import Kind
from relight.local.kube.store import ObjectStore, timestamp
from relight.local.reconciling import Queue
from relight.local.recording import Recorder

log = logging.getLogger("relight.eventing")

EVENT_LIMIT = 2**20
"""Bytes of an event at most, as on Knative's brokers by default."""
NOTHING = Filter((lambda event: False,))
"""The filter of a Trigger that cannot be built: what is pending for it is kept, nothing new is added."""


@dataclass(frozen=True, order=True)
class _Key:
    kind: str
    namespace: str
    name: str


class Eventing:
    """The brokers of one machine. ``now`` gives seconds since 1970."""

    def __init__(
        self,
        store: ObjectStore,
        path: Path,
        *,
        strict: bool = False,
        event_limit: int = EVENT_LIMIT,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._now = now
        self._base = ""
        self._uids: dict[_Key, str] = {}
        self._recorder = Recorder(store, "relight-broker")
        self._table = Table()
        self._addresses = Addresses(store, self.broker_url)
        self._tasks = Tasks("eventing")
        self._queue: Queue[_Key] | None = None
        self.log = EventLog(path)
        self._sender = Sender(event_limit)
        self.dispatcher = Dispatcher(
            self.log,
            self._table,
            self._sender,
            self._addresses.url,
            self.broker_url,
            on_warning=self._warn,
            strict=strict,
            now=now,
        )
        self._ingress = Ingress(self.dispatcher.publish, event_limit)

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
        watches = [(kind, self._store.watch(kind)) for kind in (kinds.BROKER, kinds.TRIGGER, kinds.SERVICE)]
        for broker in self._store.list(kinds.BROKER)[0]:
            await self._look(_key(kinds.BROKER, broker))
        for trigger in self._store.list(kinds.TRIGGER)[0]:
            await self._look(_key(kinds.TRIGGER, trigger))
        await self.dispatcher.start()
        self._tasks.spawn(self._queue.run(), "reconcile")
        for kind, watch in watches:
            self._tasks.spawn(self._follow(kind, watch), f"watch-{kind.plural}")
        return bound

    async def stop(self) -> None:
        """From the door inward: listener, controller, deliveries; the log last, for the others write to it."""
        await self._ingress.stop()
        await self._tasks.stop()
        await self.dispatcher.stop()
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
        if kind == kinds.TRIGGER:
            self._queue.mark(key)
            return
        if kind == kinds.BROKER:
            self._queue.mark(key)
        # Whatever has an address may be the subscriber or the sink of any Trigger.
        for trigger in self._store.list(kinds.TRIGGER)[0]:
            if kind == kinds.SERVICE or trigger["metadata"]["namespace"] == key.namespace:
                self._queue.mark(_key(kinds.TRIGGER, trigger))

    async def _look(self, key: _Key) -> None:
        await (self._look_at_broker if key.kind == kinds.BROKER.kind else self._look_at_trigger)(key)

    async def _look_at_broker(self, key: _Key) -> None:
        broker = self._store.get(kinds.BROKER, key.namespace, key.name)
        if broker is None:
            self._table.remove_broker(key.namespace, key.name)
            return
        self._table.add_broker(key.namespace, key.name)
        sink = ((broker.get("spec") or {}).get("delivery") or {}).get("deadLetterSink")
        status = statuses.of_broker(
            broker,
            self.broker_url(key.namespace, key.name),
            self._addresses.find(key.namespace, sink) if sink else None,
            timestamp(self._now()),
        )
        self._store.set_status(kinds.BROKER, key.namespace, key.name, status)

    async def _look_at_trigger(self, key: _Key) -> None:
        trigger = self._store.get(kinds.TRIGGER, key.namespace, key.name)
        known = self._uids.get(key)
        if known is not None and (trigger is None or trigger["metadata"]["uid"] != known):
            del self._uids[key]
            await self.dispatcher.remove(known)
        if trigger is None:
            return
        uid = self._uids[key] = trigger["metadata"]["uid"]
        spec = trigger.get("spec") or {}
        broker = self._store.get(kinds.BROKER, key.namespace, spec.get("broker") or "default")
        problem = None
        try:
            subscription = Subscription.of(trigger, broker)
        except BadInput as error:
            problem = error.message
            subscription = Subscription(uid, key.namespace, key.name, spec.get("broker") or "default", NOTHING)
        self.dispatcher.update(subscription)
        sink = subscription.dead_letter
        status = statuses.of_trigger(
            trigger,
            broker,
            self._addresses.find(key.namespace, spec.get("subscriber") or {}),
            self._addresses.find(key.namespace, sink) if sink else None,
            problem,
            timestamp(self._now()),
        )
        self._store.set_status(kinds.TRIGGER, key.namespace, key.name, status)

    def _warn(self, subscription: Subscription, reason: str, message: str) -> None:
        log.warning("trigger.warning trigger=%s reason=%s: %s", subscription, reason, message)
        trigger = self._store.get(kinds.TRIGGER, subscription.namespace, subscription.name)
        if trigger is not None:
            self._recorder.record(trigger, "Warning", reason, message)


def _key(kind: Kind, obj: dict[str, Any]) -> _Key:
    return _Key(kind.kind, obj["metadata"]["namespace"], obj["metadata"]["name"])
