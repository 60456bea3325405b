"""The dispatcher: every event in the log reaches every Trigger that wants it, or is dead-lettered with a reason.

At least once: an attempt that a crash cuts short is made again. What is decided (a reply, a retry, a dead letter) is in
the log before anything follows from it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from relight.base.errors import BadInput, NotFound, NotReady, Overloaded, RelightError
from relight.base.tasks import Tasks
from relight.decide import delivery
from relight.local.eventing.lanes import Item, Lane
from relight.local.eventing.log import EventLog
from relight.local.eventing.records import Incoming, Letter, Stored
from relight.local.eventing.sending import Answer, Sender, passed_on
from relight.local.eventing.triggers import Subscription, Table
from relight.wire import cloudevents
from relight.wire.cloudevents import Event

log = logging.getLogger("relight.eventing")

Resolve = Callable[[str, Mapping[str, Any]], str | None]
"""(namespace, destination as a Trigger writes it) → URL, or None while it has none."""
Warn = Callable[[Subscription, str, str], None]
"""(Trigger, reason in CamelCase, sentence)."""

BACKLOG = 100_000
"""Deliveries that may be pending in all; more are refused at the door (503)."""
FRESH_BYTES = 32 * 2**20
"""Events kept in memory between their arrival and their delivery; older ones are read from the log."""
TIMEOUT = 660.0
"""Seconds an attempt may take, a cold start included: Knative's longest revision timeout and a margin."""
SINK_RETRIES = 10
"""A dead-letter sink is tried again at least so often, whatever the Trigger says: it is the last address there is."""
STUMBLE = 1.0
"""Seconds until a delivery is tried again that failed within the platform (the log could not be written)."""


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
        broker_url: Callable[[str, str], str],
        *,
        on_warning: Warn = _log_warning,
        strict: bool = False,
        timeout: float = TIMEOUT,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._log = events
        self._table = table
        self._sender = sender
        self._resolve = resolve
        self._broker_url = broker_url
        self._warn = on_warning
        self._strict = strict
        self._timeout = timeout
        self._now = now
        self._lanes: dict[str, Lane] = {}
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._fresh: OrderedDict[int, Stored] = OrderedDict()
        self._fresh_bytes = 0
        self._lane_tasks = Tasks("lanes")
        self._deliveries = Tasks("deliveries")
        self._open = False
        self._under_way = 0
        self._quiet = asyncio.Event()

    @property
    def pending(self) -> int:
        """Deliveries that are still to do, those under way included."""
        return sum(map(len, self._lanes.values()))

    async def start(self) -> None:
        """Go on with what the log holds. What is pending for Triggers that are not in the table is dropped."""
        dropped = await self._log.keep_only(self._table.uids())
        if dropped:
            log.info("deliveries.dropped count=%d: their Triggers were deleted", dropped)
        loop = asyncio.get_running_loop()
        for pending in await self._log.pending():
            # However the clock has moved meanwhile, nothing waits longer than a retry ever would.
            wait = min(max(0.0, pending.due - self._now()), delivery.LONGEST_WAIT)
            item = Item(loop.time() + wait, pending.seq, pending.attempt, pending.letter)
            self._lane(pending.trigger).add(item)
        self._open = True

    async def stop(self, grace: float = 5.0) -> None:
        """Take nothing more, start nothing more, give what is under way ``grace`` seconds; the rest stays pending."""
        self._open = False
        await self._lane_tasks.stop()
        if self._under_way:
            self._quiet.clear()
            try:
                async with asyncio.timeout(grace):
                    await self._quiet.wait()
            except TimeoutError:
                log.info("deliveries.cut count=%d: they are made again at the next start", self._under_way)
        await self._deliveries.stop()

    def update(self, subscription: Subscription) -> None:
        """A Trigger is new or has changed."""
        self._table.put(subscription)
        lane = self._lanes.get(subscription.uid)
        if lane is not None:
            lane.subscription = subscription
            lane.wake()

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

    async def publish(self, namespace: str, broker: str, event: Event, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Accept an event for a broker: returns once it is on disk. NotFound, BadInput (TTL), Overloaded, NotReady."""
        if not self._open:
            raise NotReady("the broker is starting or stopping", retry_after=1.0)
        if not self._table.has_broker(namespace, broker):
            raise NotFound(f"there is no broker {namespace}/{broker}")
        ttl = delivery.next_ttl(event.get(delivery.TTL))
        if ttl <= 0:
            raise BadInput(f"the event went through too many brokers ({delivery.TTL})", param=delivery.TTL)
        if self.pending >= BACKLOG:
            raise Overloaded(f"{BACKLOG} deliveries are pending already; try again later", retry_after=5.0)
        incoming = self._incoming(namespace, broker, event, ttl, passed_on(headers))
        if incoming.triggers:
            self._enqueue(await self._log.accept(incoming), incoming)

    def _incoming(
        self, namespace: str, broker: str, event: Event, ttl: int, headers: tuple[tuple[str, str], ...]
    ) -> Incoming:
        received = self._now()
        stamp = datetime.fromtimestamp(received, UTC).isoformat().replace("+00:00", "Z")
        event = event.replace(knativearrivaltime=stamp, **{delivery.TTL: ttl})
        wanting = tuple(one.uid for one in self._table.matching(namespace, broker, event))
        return Incoming(namespace, broker, event, wanting, headers, received)

    def _enqueue(self, seq: int, incoming: Incoming) -> None:
        self._remember(Stored(seq, incoming.namespace, incoming.broker, incoming.event, incoming.headers))
        due = asyncio.get_running_loop().time()
        for uid in incoming.triggers:
            if self._table.get(uid) is not None:
                self._lane(uid).add(Item(due, seq))

    def _lane(self, uid: str) -> Lane:
        lane = self._lanes.get(uid)
        if lane is None:
            subscription = self._table.get(uid)
            assert subscription is not None, "lanes are made for Triggers of the table"
            lane = self._lanes[uid] = Lane(subscription, self._is_reachable, self._deliver, self._deliveries)
            self._runs[uid] = self._lane_tasks.spawn(lane.run(), str(subscription))
        return lane

    def _is_reachable(self, subscription: Subscription) -> bool:
        return self._resolve(subscription.namespace, subscription.subscriber) is not None

    def _remember(self, stored: Stored) -> None:
        self._fresh[stored.seq] = stored
        self._fresh_bytes += len(stored.event.data or b"")
        while self._fresh_bytes > FRESH_BYTES or len(self._fresh) > 4096:
            _, old = self._fresh.popitem(last=False)
            self._fresh_bytes -= len(old.event.data or b"")

    # One delivery

    async def _deliver(self, lane: Lane, item: Item) -> None:
        """One attempt, and what follows from it, in the log first."""
        self._under_way += 1
        try:
            stored = self._fresh.get(item.seq) or await self._log.event(item.seq)
            if stored is not None:
                await (self._to_subscriber if item.letter is None else self._to_sink)(lane, item, stored)
        except Exception as error:
            known = isinstance(error, RelightError)
            log.error(
                "delivery.stumbled trigger=%s event=%d error=%r: again in %g s",
                lane.subscription,
                item.seq,
                error,
                STUMBLE,
                exc_info=None if known else error,
            )
            self._again(lane, item, item.attempt, STUMBLE)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._quiet.set()

    async def _to_subscriber(self, lane: Lane, item: Item, stored: Stored) -> None:
        subscription = lane.subscription
        url = self._resolve(subscription.namespace, subscription.subscriber)
        if url is None:
            self._again(lane, item, item.attempt, STUMBLE)
            return
        headers = [("kn-namespace", stored.namespace), ("prefer", "reply"), *stored.headers]
        event = stored.event.replace(**{delivery.TTL: None})
        answer = await self._send(subscription, url, event, headers)
        if not answer.ok:
            await self._failed(lane, item, url, answer)
            return
        try:
            reply = self._reply(subscription, answer)
        except BadInput as error:
            # The status that Knative's broker gives such an answer.
            reason = f"the reply is no valid event: {error.message}"
            await self._failed(lane, item, url, Answer(502, answer.headers, reason.encode(), reason))
            return
        await self._done(lane, item, stored, reply, passed_on(answer.headers) or stored.headers)

    def _reply(self, subscription: Subscription, answer: Answer) -> Event | None:
        """The event in a 2xx answer, None if it is a mere acknowledgement; BadInput if it is neither."""
        if cloudevents.mode(answer.headers) != "none":
            return cloudevents.decode(answer.headers, answer.body)
        if not answer.body:
            return None
        message = (
            f"the answer {answer.status} has a body that is no event; it was taken as an acknowledgement."
            " Knative would count it as a failure and deliver again: answer with an event, or with an empty body"
        )
        if self._strict:
            raise BadInput("its body is not empty, and it has no ce- headers")
        self._warning(subscription, "ReplyIsNoEvent", message)
        return None

    async def _done(
        self, lane: Lane, item: Item, stored: Stored, reply: Event | None, headers: tuple[tuple[str, str], ...]
    ) -> None:
        uid = lane.subscription.uid
        if reply is None:
            await self._log.settle(item.seq, uid)
            return
        ttl = delivery.next_ttl(stored.event.get(delivery.TTL))
        if ttl <= 0:
            url = self._broker_url(stored.namespace, stored.broker)
            await self._give_up(lane, item, url, Answer(400, reason="the reply went through too many brokers: a loop"))
            return
        incoming = self._incoming(stored.namespace, stored.broker, reply, ttl, headers)
        seq = await self._log.settle(item.seq, uid, incoming if incoming.triggers else None)
        if seq is not None:
            self._enqueue(seq, incoming)

    async def _failed(self, lane: Lane, item: Item, url: str, answer: Answer) -> None:
        """Try again if that may help and attempts are left; else it is a matter for the dead-letter sink."""
        policy = lane.subscription.retry
        if not delivery.should_retry(answer.status) or item.attempt >= policy.retries:
            await self._give_up(lane, item, url, answer)
            return
        wait = delivery.wait(policy, item.attempt, answer.status, answer.headers.get("retry-after"), self._now())
        await self._postpone(lane, item, wait, answer)

    async def _give_up(self, lane: Lane, item: Item, url: str, answer: Answer) -> None:
        subscription = lane.subscription
        reason = _reason(answer)
        if subscription.dead_letter is None:
            await self._log.bury(item.seq, subscription.uid, answer.status, f"{url}: {reason}")
            self._warning(subscription, "DeliveryFailed", f"event {item.seq} is given up: {url}: {reason}")
            return
        body = answer.body if answer.status is not None else answer.reason.encode()
        letter = Letter(url, answer.status, body[: delivery.ERROR_BYTES], reason)
        await self._log.divert(item.seq, subscription.uid, letter, self._now())
        lane.add(Item(asyncio.get_running_loop().time(), item.seq, 0, letter))

    async def _to_sink(self, lane: Lane, item: Item, stored: Stored) -> None:
        subscription, letter = lane.subscription, item.letter
        assert letter is not None
        url = None
        if subscription.dead_letter is not None:
            url = self._resolve(subscription.namespace, subscription.dead_letter)
        answer = Answer(None, reason="the dead-letter sink has no address")
        if url is not None:
            event = delivery.dead_letter(stored.event, letter.destination, letter.status, letter.answer)
            answer = await self._send(subscription, url, event, [("kn-namespace", stored.namespace), *stored.headers])
        if answer.ok:
            await self._log.settle(item.seq, subscription.uid)
        elif delivery.should_retry(answer.status) and item.attempt < max(SINK_RETRIES, subscription.retry.retries):
            await self._postpone(lane, item, delivery.backoff(subscription.retry, item.attempt), answer)
        else:
            reason = f"{letter.destination}: {letter.reason}; the dead-letter sink did not take it: {_reason(answer)}"
            await self._log.bury(item.seq, subscription.uid, letter.status, reason)
            self._warning(subscription, "DeadLetterFailed", f"event {item.seq} is given up: {reason}")

    def _warning(self, subscription: Subscription, reason: str, message: str) -> None:
        """Tell whoever wants to know; that it fails must not turn into another delivery."""
        try:
            self._warn(subscription, reason, message)
        except Exception:
            log.exception("trigger.warning_failed trigger=%s reason=%s: %s", subscription, reason, message)

    async def _send(
        self, subscription: Subscription, url: str, event: Event, headers: Iterable[tuple[str, str]]
    ) -> Answer:
        policy = subscription.retry
        timeout = policy.timeout or self._timeout
        return await self._sender.send(url, event, headers, timeout=timeout, structured=policy.structured)

    async def _postpone(self, lane: Lane, item: Item, wait: float, answer: Answer) -> None:
        attempt = item.attempt + 1
        await self._log.postpone(item.seq, lane.subscription.uid, attempt, self._now() + wait, _reason(answer))
        log.info(
            "delivery.failed trigger=%s event=%d attempt=%d reason=%s: again in %.2f s",
            lane.subscription,
            item.seq,
            attempt,
            _reason(answer),
            wait,
        )
        self._again(lane, item, attempt, wait)

    def _again(self, lane: Lane, item: Item, attempt: int, wait: float) -> None:
        lane.add(Item(asyncio.get_running_loop().time() + wait, item.seq, attempt, item.letter))


def _reason(answer: Answer) -> str:
    """One line for people: the status and the beginning of the answer, without control characters."""
    said = answer.reason or answer.body[:300].decode("utf-8", "replace")
    said = " ".join("".join(char if char.isprintable() else " " for char in said).split())
    if answer.status is None:
        return said
    return f"answered {answer.status}: {said}" if said else f"answered {answer.status}"
