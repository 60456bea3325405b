"""One delivery: an attempt, and what follows from it.

At least once: an attempt that a crash cuts short is made again. What is decided (a reply, a retry, a dead letter) is in
the log before anything follows from it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from relight.base.errors import BadInput, NotFound, RelightError
from relight.decide import delivery
from relight.local.eventing.hops import Hop, Outcome
from relight.local.eventing.lanes import Item, Lane
from relight.local.eventing.log import EventLog
from relight.local.eventing.metrics import Metrics
from relight.local.eventing.naming import Hub
from relight.local.eventing.records import Incoming, Letter, Stored
from relight.local.eventing.sending import Answer, Sender, passed_on
from relight.local.eventing.triggers import Subscription, Table
from relight.wire import cloudevents
from relight.wire.cloudevents import Event

log = logging.getLogger("relight.eventing")

SINK_RETRIES = 10
"""A dead-letter sink is tried again at least so often, whatever the Trigger says: it is the last address there is."""
STUMBLE = 1.0
"""Seconds until a delivery is tried again that failed within the platform (the log could not be written)."""
TRACING = ("traceparent", "tracestate")
"""The distributed tracing extension: a reply without it gets its cause's."""


@dataclass(frozen=True)
class Rules:
    """What a delivery asks of the platform."""

    resolve: Callable[[str, Mapping[str, Any]], str | None]
    """(namespace, destination) → URL, or None while it has none."""
    hub_url: Callable[[str, str], str]
    warn: Callable[[Subscription, str, str], None]
    strict: bool
    timeout: float
    """Seconds that an attempt may take where the Trigger says nothing."""
    now: Callable[[], float]
    """Seconds since 1970."""
    random01: Callable[[], float]


class Intake(Protocol):
    """Where replies go in."""

    def check(self, hub: Hub, event: Event) -> None: ...

    def incoming(
        self, hub: Hub, event: Event, ttl: int, headers: tuple[tuple[str, str], ...], cause: int | None = None
    ) -> Incoming: ...

    def offer(self, incoming: Incoming) -> None: ...

    def enqueue(self, seq: int, incoming: Incoming) -> None: ...

    async def stored(self, seq: int) -> Stored | None: ...


@dataclass(slots=True)
class _Attempt:
    """An attempt under way."""

    lane: Lane
    item: Item
    stored: Stored
    began: float
    ended: float | None = None
    """When the subscriber had answered."""

    @property
    def subscription(self) -> Subscription:
        return self.lane.subscription


class Deliverer:
    """Makes the attempts that lanes start."""

    def __init__(
        self, events: EventLog, table: Table, sender: Sender, rules: Rules, intake: Intake, metrics: Metrics
    ) -> None:
        self._log = events
        self._table = table
        self._sender = sender
        self._rules = rules
        self._intake = intake
        self._metrics = metrics
        self._under_way = 0
        self._quiet = asyncio.Event()

    async def quiet(self, grace: float) -> None:
        """Wait until no attempt is under way, at most ``grace`` seconds."""
        if not self._under_way:
            return
        self._quiet.clear()
        try:
            async with asyncio.timeout(grace):
                await self._quiet.wait()
        except TimeoutError:
            log.info("deliveries.cut count=%d: they are made again at the next start", self._under_way)

    async def deliver(self, lane: Lane, item: Item) -> None:
        """One attempt, and what follows from it, in the log first."""
        self._under_way += 1
        try:
            stored = await self._intake.stored(item.seq)
            if stored is not None:
                attempt = _Attempt(lane, item, stored, self._rules.now())
                await (self._to_subscriber if item.letter is None else self._to_sink)(attempt)
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
            _again(lane, item, item.attempt, STUMBLE)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._quiet.set()

    # To the subscriber

    async def _to_subscriber(self, attempt: _Attempt) -> None:
        subscription, stored = attempt.subscription, attempt.stored
        event = stored.event.replace(**{delivery.TTL: None})
        if not subscription.subscriber:
            await self._done(attempt, Answer(None), event, stored.headers)
            return
        if subscription.dedup == "durable" and await self._log.is_answered(subscription.uid, stored):
            await self._settle(attempt, None, "known")
            return
        url = self._rules.resolve(subscription.namespace, subscription.subscriber)
        if url is None:
            _again(attempt.lane, attempt.item, attempt.item.attempt, STUMBLE)
            return
        headers = [("kn-namespace", stored.namespace), ("prefer", "reply"), *stored.headers]
        if subscription.dedup == "off":
            headers.append(("relight-dedup", "off"))
        answer = await self._send(subscription, url, event, headers)
        attempt.ended = self._rules.now()
        self._metrics.observe("attempt", attempt.ended - attempt.began, subscription.namespace, subscription.name)
        if not answer.ok:
            await self._failed(attempt, url, answer)
            return
        try:
            reply = self._reply(subscription, answer)
        except BadInput as error:
            # The status that Knative's broker gives such an answer.
            reason = f"the reply is no valid event: {error.message}"
            await self._failed(attempt, url, Answer(502, answer.headers, reason.encode(), reason))
            return
        await self._done(attempt, answer, reply, passed_on(answer.headers) or stored.headers)

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
        if self._rules.strict:
            raise BadInput("its body is not empty, and it has no ce- headers")
        self._warning(subscription, "ReplyIsNoEvent", message)
        return None

    async def _done(
        self, attempt: _Attempt, answer: Answer, reply: Event | None, headers: tuple[tuple[str, str], ...]
    ) -> None:
        """The subscriber has answered: the delivery is done, and its reply goes where replies go."""
        subscription, stored = attempt.subscription, attempt.stored
        hub = subscription.replies
        if reply is None or hub is None:
            await self._settle(attempt, answer.status, "done", reply)
            return
        url = self._rules.hub_url(*hub)
        ttl = delivery.next_ttl(stored.event.get(delivery.TTL))
        if ttl <= 0:
            await self._give_up(attempt, url, Answer(400, reason="the reply went through too many brokers: a loop"))
            return
        reply = _traced(reply, stored.event)
        try:
            self._intake.check(hub, reply)
        except (BadInput, NotFound) as error:
            # A broker that is not there may come; what is wrong with the reply stays wrong.
            await self._failed(attempt, url, Answer(error.status, reason=f"the reply was refused: {error.message}"))
            return
        incoming = self._intake.incoming(hub, reply, ttl, headers, stored.seq)
        await self._settle(attempt, answer.status, "done", reply, incoming)

    async def _settle(
        self,
        attempt: _Attempt,
        status: int | None,
        outcome: Outcome,
        reply: Event | None = None,
        incoming: Incoming | None = None,
    ) -> None:
        subscription, stored = attempt.subscription, attempt.stored
        ended = self._rules.now() if attempt.ended is None else attempt.ended
        hop = Hop.of(
            stored,
            subscription.uid,
            str(subscription),
            began=attempt.began,
            ended=ended,
            attempts=attempt.item.attempt + 1,
            outcome=outcome,
            status=status,
            reply=reply,
        )
        once = subscription.dedup != "off" and bool(subscription.subscriber) and not self._rules.strict
        wanted = incoming if incoming is not None and incoming.triggers else None
        seq = await self._log.settle(stored.seq, subscription.uid, wanted, hop=hop, once=once)
        names = (subscription.namespace, subscription.name)
        if outcome == "done":
            self._metrics.count("delivered", *names)
        self._metrics.observe("latency", ended - stored.received, *names)
        if incoming is not None and (seq is not None or wanted is None):
            self._intake.offer(incoming)
        if seq is not None and wanted is not None:
            self._intake.enqueue(seq, wanted)

    # When it fails

    async def _failed(self, attempt: _Attempt, url: str, answer: Answer) -> None:
        """Try again if that may help and attempts are left; else it is a matter for the dead-letter sink."""
        policy, item = attempt.subscription.retry, attempt.item
        if not delivery.should_retry(answer.status) or item.attempt >= policy.retries:
            await self._give_up(attempt, url, answer)
            return
        asked = answer.headers.get("retry-after")
        wait = delivery.wait(policy, item.attempt, answer.status, asked, self._rules.now())
        await self._postpone(attempt, wait, answer)

    async def _give_up(self, attempt: _Attempt, url: str, answer: Answer) -> None:
        subscription, item = attempt.subscription, attempt.item
        reason = _reason(answer)
        self._metrics.count("dead", subscription.namespace, subscription.name)
        if subscription.dead_letter is None:
            await self._bury(attempt, answer.status, f"{url}: {reason}", "DeliveryFailed")
            return
        body = answer.body if answer.status is not None else answer.reason.encode()
        letter = Letter(url, answer.status, body[: delivery.ERROR_BYTES], reason)
        await self._log.divert(item.seq, subscription.uid, letter, self._rules.now(), began=attempt.began)
        attempt.lane.add(Item(asyncio.get_running_loop().time(), item.seq, 0, letter))

    async def _to_sink(self, attempt: _Attempt) -> None:
        subscription, stored, item = attempt.subscription, attempt.stored, attempt.item
        letter = item.letter
        assert letter is not None
        url = None
        if subscription.dead_letter is not None:
            url = self._rules.resolve(subscription.namespace, subscription.dead_letter)
        answer = Answer(None, reason="the dead-letter sink has no address")
        if url is not None:
            event = delivery.dead_letter(stored.event, letter.destination, letter.status, letter.answer)
            answer = await self._send(subscription, url, event, [("kn-namespace", stored.namespace), *stored.headers])
        if answer.ok:
            await self._settle(attempt, answer.status, "sunk")
        elif delivery.should_retry(answer.status) and item.attempt < max(SINK_RETRIES, subscription.retry.retries):
            await self._postpone(attempt, delivery.backoff(subscription.retry, item.attempt), answer)
        else:
            reason = f"{letter.destination}: {letter.reason}; the dead-letter sink did not take it: {_reason(answer)}"
            await self._bury(attempt, letter.status, reason, "DeadLetterFailed")

    async def _bury(self, attempt: _Attempt, status: int | None, reason: str, warning: str) -> None:
        subscription, item = attempt.subscription, attempt.item
        await self._log.bury(
            item.seq,
            subscription.uid,
            status,
            reason,
            name=str(subscription),
            at=self._rules.now(),
            attempt=item.attempt + 1,
            began=attempt.began,
        )
        self._warning(subscription, warning, f"event {item.seq} is given up: {reason}")

    async def _postpone(self, attempt: _Attempt, wait: float, answer: Answer) -> None:
        subscription, item = attempt.subscription, attempt.item
        if not self._rules.strict:
            wait = delivery.jittered(wait, self._rules.random01())
        number, reason = item.attempt + 1, _reason(answer)
        self._metrics.count("retried", subscription.namespace, subscription.name)
        await self._log.postpone(
            item.seq, subscription.uid, number, self._rules.now() + wait, reason, began=attempt.began
        )
        log.info(
            "delivery.failed trigger=%s event=%d attempt=%d reason=%s: again in %.2f s",
            subscription,
            item.seq,
            number,
            reason,
            wait,
        )
        _again(attempt.lane, item, number, wait)

    def _warning(self, subscription: Subscription, reason: str, message: str) -> None:
        """Tell whoever wants to know; that it fails must not turn into another delivery."""
        try:
            self._rules.warn(subscription, reason, message)
        except Exception:
            log.exception("trigger.warning_failed trigger=%s reason=%s: %s", subscription, reason, message)

    async def _send(
        self, subscription: Subscription, url: str, event: Event, headers: Iterable[tuple[str, str]]
    ) -> Answer:
        policy = subscription.retry
        timeout = policy.timeout or self._rules.timeout
        return await self._sender.send(url, event, headers, timeout=timeout, structured=policy.structured)


def _again(lane: Lane, item: Item, attempt: int, wait: float) -> None:
    lane.again(Item(asyncio.get_running_loop().time() + wait, item.seq, attempt, item.letter))


def _traced(reply: Event, cause: Event) -> Event:
    """The reply with its cause's tracing, where it says nothing itself."""
    if reply.get(TRACING[0]) is not None or cause.get(TRACING[0]) is None:
        return reply
    return reply.replace(**{name: cause.get(name) for name in TRACING})


def _reason(answer: Answer) -> str:
    """One line for people: the status and the beginning of the answer, without control characters."""
    said = answer.reason or answer.body[:300].decode("utf-8", "replace")
    said = " ".join("".join(char if char.isprintable() else " " for char in said).split())
    if answer.status is None:
        return said
    return f"answered {answer.status}: {said}" if said else f"answered {answer.status}"
