"""What people ask a broker: what waits, what was given up and why, what passes now, what became of an event.

Served on the broker's listener below ``/-/``, where no namespace can be, and not as objects of the Kubernetes API: what
is asked for are events with their data and streams of them, by the thousand, which no cluster's API server has either.
It takes the API's bearer token, for it shows what others sent and delivers it again. ``/metrics`` takes none.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import unquote

import orjson
from aiohttp import web

from relight.base.errors import BadInput, NotAllowed, NotFound, Overloaded, Unauthorized
from relight.local.eventing import tracing
from relight.local.eventing.choosing import MOST, Choice
from relight.local.eventing.dispatch import Dispatcher
from relight.local.eventing.log import EventLog
from relight.local.eventing.metrics import CONTENT_TYPE
from relight.local.eventing.records import Entry, Incoming
from relight.local.eventing.tapping import TAPS
from relight.local.eventing.triggers import Table
from relight.wire import cloudevents
from relight.wire.cloudevents import Event

log = logging.getLogger("relight.eventing")

PREFIX = "/-/"
HEARTBEAT = 10.0
"""Seconds after which a tail says that it is still there; it notices so that its reader has gone."""
_JSON = "application/json"

Handler = Callable[[web.BaseRequest, Mapping[str, str]], Awaitable[web.StreamResponse]]


class Inspection:
    """The handlers. ``token`` None: nobody is let in (``/metrics`` apart)."""

    def __init__(self, events: EventLog, table: Table, dispatcher: Dispatcher, token: str | None) -> None:
        self._log = events
        self._table = table
        self._dispatcher = dispatcher
        self._token = token
        self._handlers: dict[tuple[str, str], Handler] = {
            ("GET", "deliveries"): self._deliveries,
            ("POST", "replay"): self._replay,
            ("POST", "discard"): self._discard,
            ("GET", "tail"): self._tail,
        }

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse | None:
        """The answer to a request that is for here; None: it is for a broker. Raises the errors of ``base.errors``."""
        if request.path == "/metrics" and request.method == "GET":
            return web.Response(body=self._dispatcher.metrics.render(), headers={"Content-Type": CONTENT_TYPE})
        if not request.path.startswith(PREFIX):
            return None
        self._authorize(request)
        what = request.path.removeprefix(PREFIX)
        if what.startswith("trace/") and request.method == "GET":
            return await self._trace(unquote(request.rel_url.raw_path.removeprefix(PREFIX + "trace/")))
        handler = self._handlers.get((request.method, what))
        if handler is None:
            if any(name == what for _, name in self._handlers):
                raise NotAllowed(f"{request.method} is not served at {request.path}")
            raise NotFound(f"nothing is served at {request.path!r}"[:200])
        return await handler(request, dict(request.query))

    def _authorize(self, request: web.BaseRequest) -> None:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").encode()
        if self._token is None or not hmac.compare_digest(given, self._token.encode()):
            raise Unauthorized("the bearer token of local mode's API is needed here; it is in its kubeconfig")

    # Deliveries

    async def _deliveries(self, request: web.BaseRequest, given: Mapping[str, str]) -> web.Response:
        asked = dict(given)
        state = asked.pop("state", "pending")
        if state not in ("pending", "dead"):
            raise BadInput(f"state: pending or dead was expected, got {state!r}"[:200], param="state")
        found = await self._chosen(Choice.of(asked), dead=state == "dead")
        return _json({"deliveries": [self._told(entry) for entry in found]})

    async def _replay(self, request: web.BaseRequest, given: Mapping[str, str]) -> web.Response:
        found = await self._chosen(Choice.of({"limit": str(MOST), **given}), dead=True)
        chosen = [(entry.seq, entry.trigger) for entry in found]
        orphans = [entry for entry in found if self._table.get(entry.trigger) is None]
        replayed = await self._dispatcher.replay(chosen)
        log.info("dead_letters.replayed count=%d", replayed)
        return _json({"replayed": replayed, "without_trigger": len(orphans)})

    async def _discard(self, request: web.BaseRequest, given: Mapping[str, str]) -> web.Response:
        found = await self._chosen(Choice.of({"limit": str(MOST), **given}), dead=True)
        gone = await self._log.discard([(entry.seq, entry.trigger) for entry in found])
        log.info("dead_letters.discarded count=%d", gone)
        return _json({"discarded": gone})

    async def _chosen(self, choice: Choice, *, dead: bool) -> list[Entry]:
        """Filtered after reading: there are few thousands at most, and no index would serve every question."""
        entries = await (self._log.dead if dead else self._log.waiting)(MOST)
        found = []
        for entry in entries:
            stored = entry.stored
            name = self._name(entry).rpartition("/")[2]
            if choice.wants(stored.namespace, stored.broker, stored.event, name, entry.reason):
                found.append(entry)
        return found[: choice.limit]

    def _name(self, entry: Entry) -> str:
        """Namespace and name of a delivery's Trigger, as far as they are known."""
        subscription = self._table.get(entry.trigger)
        return str(subscription) if subscription is not None else entry.name or entry.trigger

    def _paused(self, entry: Entry) -> bool:
        subscription = self._table.get(entry.trigger)
        return subscription is not None and subscription.paused

    def _told(self, entry: Entry) -> dict[str, Any]:
        stored = entry.stored
        told: dict[str, Any] = {
            "seq": entry.seq,
            "namespace": stored.namespace,
            "broker": stored.broker,
            "trigger": self._name(entry).rpartition("/")[2],
            "state": "dead" if entry.dead else "pending",
            "received": stored.received,
            "attempts": entry.attempt,
            "status": entry.status,
            "reason": entry.reason,
            "tries": tracing.tries(entry.tries),
            "event": _event(stored.event),
        }
        if not entry.dead and not entry.reason and not self._dispatcher.is_reachable(entry.trigger):
            told["reason"] = "the subscriber has no address yet"
        told["died" if entry.dead else "due"] = entry.at
        if self._paused(entry):
            told["paused"] = True
        return told

    # What passes, and what became of it

    async def _tail(self, request: web.BaseRequest, given: Mapping[str, str]) -> web.StreamResponse:
        """One line of JSON per event, as they are accepted; an empty line now and then where none comes."""
        choice = Choice.of(given)
        if len(self._dispatcher.taps) >= TAPS:
            raise Overloaded(f"{TAPS} others look on already", retry_after=5.0)

        def wants(incoming: Incoming) -> bool:
            return choice.wants_event(incoming.namespace, incoming.broker, incoming.event)

        response = web.StreamResponse(headers={"Content-Type": "application/jsonl"})
        # A reader that has gone, or takes nothing for so long, ends this and nothing else.
        with self._dispatcher.taps.open(wants) as tap, contextlib.suppress(ConnectionError, TimeoutError):
            await response.prepare(request)
            await response.write(b"\n")
            missed = 0
            while not tap.ended:
                incoming = await tap.next(HEARTBEAT)
                line = b"" if incoming is None else orjson.dumps(_passing(incoming))
                if tap.missed > missed:
                    line = orjson.dumps({"missed": tap.missed - missed}) + b"\n" + line
                    missed = tap.missed
                async with asyncio.timeout(HEARTBEAT):
                    await response.write(line + b"\n")
            await response.write_eof()
        return response

    async def _trace(self, wanted: str) -> web.Response:
        hops, entries = await self._log.tree(wanted)
        roots = tracing.tree(hops, entries, self._name, self._paused)
        if not roots:
            raise NotFound(f"no event and no trace {wanted[:200]!r} is in the broker's history")
        return _json({"events": roots})


def _passing(incoming: Incoming) -> dict[str, Any]:
    return {
        "namespace": incoming.namespace,
        "broker": incoming.broker,
        "received": incoming.received,
        "triggers": len(incoming.triggers),
        "event": _event(incoming.event),
    }


def _event(event: Event) -> orjson.Fragment:
    """The event as the JSON format has it."""
    return orjson.Fragment(cloudevents.encode_structured(event)[1])


def _json(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type=_JSON)
