"""The dispatcher: every event that is accepted reaches every Trigger that wants it, or is dead-lettered with a reason.

It stores what comes in, keeps a lane of deliveries per Trigger, and goes on after a restart with what the log holds.
What one delivery is, and what follows from it, is in ``delivering``.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from relight.base.errors import BadInput, NotFound, NotReady, Overloaded
from relight.base.tasks import Tasks
from relight.decide import delivery
from relight.local.eventing.delivering import Deliverer, Rules
from relight.local.eventing.lanes import Item, Lane
from relight.local.eventing.log import EventLog
from relight.local.eventing.metrics import Metrics
from relight.local.eventing.naming import Hub
from relight.local.eventing.records import Incoming, Stored
from relight.local.eventing.sending import Sender, passed_on
from relight.local.eventing.tapping import Taps
from relight.local.eventing.triggers import Subscription, Table
from relight.wire.cloudevents import Event

log = logging.getLogger("relight.eventing")

Resolve = Callable[[str, Mapping[str, Any]], str | None]
"""(namespace, destination as a Trigger writes it) → URL, or None while it has none."""
Warn = Callable[[Subscription, str, str], None]
"""(Trigger, reason in CamelCase, sentence)."""
Check = Callable[[Hub, Event], None]
"""Raises BadInput for an event that a hub does not take."""

Poison = tuple[Hub, str, Sequence[tuple[Event, str]]]
"""The hub, the Trigger whose dead letters they become, and the events, each with the reason."""

BACKLOG = 100_000
"""Deliveries that may be pending in all; more are refused at the door (503)."""
FRESH_BYTES = 32 * 2**20
"""Events kept in memory between their arrival and their delivery; older ones are read from the log."""
TIMEOUT = 660.0
"""Seconds an attempt may take, a cold start included: Knative's longest revision timeout and a margin."""


def _log_warning(subscription: Subscription, reason: str, message: str) -> None:
    log.warning("trigger.warning trigger=%s reason=%s: %s", subscription, reason, message)


class Dispatcher:
    """Publishes into the log and delivers from it. ``strict``: as Knative, also where that is less kind."""

    def __init__(
        self,
        events: EventLog,
        table: Table,
        sender: Sender,
        resolve: Resolve,
        hub_url: Callable[[str, str], str],
        *,
        on_warning: Warn = _log_warning,
        check: Check = lambda hub, event: None,
        strict: bool = False,
        timeout: float = TIMEOUT,
        now: Callable[[], float] = time.time,
        random01: Callable[[], float] = random.random,
    ) -> None:
        self._log = events
        self._table = table
        self._resolve = resolve
        self._check = check
        self._now = now
        self._lanes: dict[str, Lane] = {}
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._fresh: OrderedDict[int, Stored] = OrderedDict()
        self._fresh_bytes = 0
        self._lane_tasks = Tasks("lanes")
        self._deliveries = Tasks("deliveries")
        self._open = False
        self.taps = Taps()
        self.metrics = Metrics()
        self.metrics.gauge(
            "relight_broker_queue", "Deliveries that are still to do", ("namespace", "trigger"), self._queues
        )
        rules = Rules(resolve, hub_url, on_warning, strict, timeout, now, random01)
        self._deliverer = Deliverer(events, table, sender, rules, self, self.metrics)

    @property
    def pending(self) -> int:
        """Deliveries that are still to do, those under way included."""
        return sum(map(len, self._lanes.values()))

    def _queues(self) -> Iterable[tuple[tuple[str, str], float]]:
        waiting: dict[tuple[str, str], float] = {}
        for lane in self._lanes.values():
            name = (lane.subscription.namespace, lane.subscription.name)
            waiting[name] = waiting.get(name, 0) + len(lane)
        return waiting.items()

    async def start(self) -> None:
        """Go on with what the log holds. What is pending for Triggers that are not in the table is dropped."""
        dropped = await self._log.keep_only(self._table.uids())
        if dropped:
            log.info("deliveries.dropped count=%d: their Triggers were deleted", dropped)
        await self._log.trim(self._now())
        loop = asyncio.get_running_loop()
        keys = {one.uid: await self._keys(one) for one in self._table.all() if one.ordering_key is not None}
        for pending in await self._log.pending():
            # However the clock has moved meanwhile, nothing waits longer than a retry ever would.
            wait = min(max(0.0, pending.due - self._now()), delivery.LONGEST_WAIT)
            key = keys.get(pending.trigger, {}).get(pending.seq)
            item = Item(loop.time() + wait, pending.seq, pending.attempt, pending.letter, key)
            self._lane(pending.trigger).add(item)
        self._open = True

    async def stop(self, grace: float = 5.0) -> None:
        """Take nothing more, start nothing more, give what is under way ``grace`` seconds; the rest stays pending."""
        self._open = False
        await self._lane_tasks.stop()
        await self._deliverer.quiet(grace)
        await self._deliveries.stop()

    async def update(self, subscription: Subscription) -> None:
        """A Trigger is new or has changed."""
        before = self._table.get(subscription.uid)
        self._table.put(subscription)
        lane = self._lanes.get(subscription.uid)
        if lane is None:
            return
        lane.subscription = subscription
        if before is None or before.ordering_key != subscription.ordering_key:
            lane.reorder(await self._keys(subscription))
        lane.wake()

    async def _keys(self, subscription: Subscription) -> dict[int, str | None]:
        """What each pending event of a Trigger is ordered by."""
        return {one.seq: subscription.key_of(one.event) for one in await self._log.pending_for(subscription.uid)}

    def wake(self) -> None:
        """Some address may have changed."""
        for lane in self._lanes.values():
            lane.wake()

    async def remove(self, uid: str) -> None:
        """A Trigger is gone: what is pending for it goes too; what is under way ends by itself."""
        self._table.remove(uid)
        self._lanes.pop(uid, None)
        run = self._runs.pop(uid, None)
        if run is not None:
            run.cancel()
        await self._log.drop(uid)

    # What comes in

    async def publish(self, namespace: str, broker: str, event: Event, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Accept an event for a hub: returns once it is on disk. NotFound, BadInput (TTL), Overloaded, NotReady."""
        await self.publish_all((namespace, broker), [event], headers)

    async def publish_all(
        self,
        hub: Hub,
        events: Sequence[Event],
        headers: Iterable[tuple[str, str]] = (),
        cursor: tuple[str, str] | None = None,
        poison: Poison | None = None,
    ) -> None:
        """Accept events for a hub, all or none; ``cursor``: how far their source has come, in the same commit.

        ``poison`` is what cannot be delivered: dead letters from the start, in the same commit.
        """
        incoming = self._checked(hub, events, headers)
        wanted = [one for one in incoming if one.triggers]
        dead = self._poisoned(poison)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def told(seqs: Sequence[int], error: BaseException | None) -> None:
            # Also where whoever waited was cancelled (a source that has changed): what is on disk is accepted.
            if error is None:
                self._accepted(incoming, wanted, seqs)
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        if wanted or cursor or dead:
            self._log.accept_then(wanted, told, cursor, dead)
        else:
            told([], None)
        await done

    def publish_then(
        self,
        hub: Hub,
        events: Sequence[Event],
        headers: Iterable[tuple[str, str]],
        then: Callable[[BaseException | None], None],
    ) -> None:
        """As ``publish_all``, without a task: ``then`` hears on the loop when the events are on disk, or why not."""
        incoming = self._checked(hub, events, headers)
        wanted = [one for one in incoming if one.triggers]

        def told(seqs: Sequence[int], error: BaseException | None) -> None:
            if error is None:
                self._accepted(incoming, wanted, seqs)
            then(error)

        if wanted:
            self._log.accept_then(wanted, told)
        else:
            told([], None)

    def _checked(self, hub: Hub, events: Sequence[Event], headers: Iterable[tuple[str, str]]) -> list[Incoming]:
        """The events as they enter the log; raises where they must not."""
        if not self._open:
            raise NotReady("the broker is starting or stopping", retry_after=1.0)
        if not self._table.has_hub(hub):
            raise NotFound(f"there is no broker {'/'.join(hub)}")
        if self.pending + len(events) > BACKLOG:
            raise Overloaded(f"{BACKLOG} deliveries are pending already; try again later", retry_after=5.0)
        passed = passed_on(headers)
        incoming = []
        for event in events:
            ttl = delivery.next_ttl(event.get(delivery.TTL))
            if ttl <= 0:
                raise BadInput(f"the event went through too many brokers ({delivery.TTL})", param=delivery.TTL)
            self._check(hub, event)
            incoming.append(self.incoming(hub, event, ttl, passed))
        return incoming

    def _accepted(self, incoming: Sequence[Incoming], wanted: Sequence[Incoming], seqs: Sequence[int]) -> None:
        for one in incoming:
            self.offer(one)
        for seq, one in zip(seqs, wanted, strict=True):
            self.enqueue(seq, one)

    def _poisoned(self, poison: Poison | None) -> list[tuple[Incoming, str]]:
        if poison is None:
            return []
        hub, uid, events = poison
        for _, reason in events:
            log.warning("event.poisoned hub=%s reason=%s: it is a dead letter", "/".join(hub), reason)
            self.metrics.count("dead", hub[0], hub[1])
        return [(Incoming(*hub, event, (uid,), received=self._now()), reason) for event, reason in events]

    def check(self, hub: Hub, event: Event) -> None:
        """Raise NotFound or BadInput for a reply that a hub cannot take."""
        if not self._table.has_hub(hub):
            raise NotFound(f"there is no broker {'/'.join(hub)} for the reply")
        self._check(hub, event)

    def incoming(
        self, hub: Hub, event: Event, ttl: int, headers: tuple[tuple[str, str], ...], cause: int | None = None
    ) -> Incoming:
        """An event as it enters the log: with its arrival time at a Broker, its TTL, and whoever wants it."""
        received = self._now()
        stamps: dict[str, Any] = {delivery.TTL: ttl}
        if "/" not in hub[1]:
            stamps["knativearrivaltime"] = datetime.fromtimestamp(received, UTC).isoformat().replace("+00:00", "Z")
        event = event.replace(**stamps)
        wanting = tuple(one.uid for one in self._table.matching(hub, event))
        return Incoming(*hub, event, wanting, headers, received, cause)

    def offer(self, incoming: Incoming) -> None:
        """An event was accepted: count it, and show it to whoever looks on."""
        self.metrics.count("accepted", incoming.namespace, incoming.broker)
        self.taps.offer(incoming)

    def enqueue(self, seq: int, incoming: Incoming) -> None:
        """An event is in the log: its deliveries may start."""
        self._remember(Stored.of(seq, incoming))
        due = asyncio.get_running_loop().time()
        for uid in incoming.triggers:
            subscription = self._table.get(uid)
            if subscription is not None:
                self._lane(uid).add(Item(due, seq, key=subscription.key_of(incoming.event)))

    async def replay(self, chosen: Sequence[tuple[int, str]]) -> int:
        """Deliver dead ones (event, Trigger) again, as new; how many. Those whose Trigger is gone stay dead."""
        alive = [one for one in chosen if self._table.get(one[1]) is not None]
        revived = await self._log.revive(alive, self._now())
        due = asyncio.get_running_loop().time()
        for seq, uid in revived:
            subscription, stored = self._table.get(uid), await self._log.event(seq)
            if subscription is not None and stored is not None:
                self._lane(uid).add(Item(due, seq, key=subscription.key_of(stored.event)))
        return len(revived)

    async def stored(self, seq: int) -> Stored | None:
        """An event that is not delivered yet."""
        return self._fresh.get(seq) or await self._log.event(seq)

    def _remember(self, stored: Stored) -> None:
        self._fresh[stored.seq] = stored
        self._fresh_bytes += len(stored.event.data or b"")
        while self._fresh_bytes > FRESH_BYTES or len(self._fresh) > 4096:
            _, old = self._fresh.popitem(last=False)
            self._fresh_bytes -= len(old.event.data or b"")

    # Lanes

    def _lane(self, uid: str) -> Lane:
        lane = self._lanes.get(uid)
        if lane is None:
            subscription = self._table.get(uid)
            assert subscription is not None, "lanes are made for Triggers of the table"
            lane = self._lanes[uid] = Lane(subscription, self._is_reachable, self._deliverer.deliver, self._deliveries)
            self._runs[uid] = self._lane_tasks.spawn(lane.run(), str(subscription))
        return lane

    def is_reachable(self, uid: str) -> bool:
        """Whether a Trigger's deliveries have somewhere to go: without an address they wait."""
        subscription = self._table.get(uid)
        return subscription is None or self._is_reachable(subscription)

    def _is_reachable(self, subscription: Subscription) -> bool:
        if not subscription.subscriber:
            return True
        return self._resolve(subscription.namespace, subscription.subscriber) is not None
