"""RedisStreamSource: the entries of a Redis stream, read as a consumer of a group."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import orjson

from relight.base.errors import BadInput, Problem
from relight.local.eventing.secrets import Secrets, referred
from relight.local.eventing.sources.feeding import BATCH, BLOCK, LAG_EVERY, LIMIT, Feed, Record
from relight.local.eventing.sources.objects import Plan, needed, overrides
from relight.local.eventing.world import Object
from relight.local.kube import kinds
from relight.net.publishing import redis
from relight.wire.cloudevents import JSON, Event

TYPE = "dev.knative.sources.redisstream"
TIMEOUT = 10.0
"""Seconds for Redis to answer."""


class RedisStreams:
    """As Knative's adapter reads it: a group that starts at the stream's end, made where there is none."""

    kind = kinds.REDIS_STREAM_SOURCE

    def plan(self, obj: Object, secrets: Secrets) -> Plan:
        spec, uid = obj.get("spec") or {}, obj["metadata"]["uid"]
        address, options = connection(spec, secrets)
        parts = urlsplit(address)
        settings: dict[str, Any] = {
            "address": address,
            "stream": str(spec.get("stream")),
            "group": str(spec.get("group") or f"relight-{uid}"),
            "options": options,
        }
        # The address without what it says of user and password: it goes out with every event.
        where = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "") + parts.path
        settings["source"] = f"{where.rstrip('/')}/{spec['stream']}"
        return Plan(((TYPE, settings["source"]),), settings, overrides(spec))

    def feed(self, plan: Plan) -> Feed:
        return _RedisFeed(plan.settings)


def connection(spec: Mapping[str, Any], secrets: Secrets) -> tuple[str, dict[str, Any]]:
    """The URL of ``spec.address`` and the client's options. BadInput names what is wrong of them, and of the stream."""
    problems = needed(spec, "address", "stream")
    address = str(spec.get("address") or "")
    if "://" not in address:
        address = f"redis://{address}"
    parts = urlsplit(address)
    if parts.scheme not in ("redis", "rediss"):
        problems.append(Problem("spec.address", "a redis:// or rediss:// URL was expected"))
    given = spec.get("dialOptions") or spec.get("options") or {}
    for name in ("cert", "key"):
        if given.get(name):
            problems.append(Problem(f"spec.dialOptions.{name}", "client certificates are not taken here yet"))
    if problems:
        raise BadInput.of(problems)
    options: dict[str, Any] = {}
    if given.get("useTLS"):
        address = urlunsplit(parts._replace(scheme="rediss"))
    reference = given.get("password") or {}
    if reference.get("name"):
        options["password"] = secrets(str(reference["name"]), "password")
    if address.startswith("rediss://"):
        options |= redis.tls_options(referred(secrets, given.get("caCert"), "ca.crt"), not given.get("skipVerify"))
    return address, options


class _RedisFeed:
    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._redis: Any = None
        self._from = "0"
        """First what this consumer was given before and has not acknowledged; then ``>``: what is new."""
        self._asked = float("-inf")
        self.lag: int | None = None

    async def open(self) -> None:
        settings = self._settings
        # A read blocks for a while before it answers.
        self._redis = redis.connect(settings["address"], timeout=TIMEOUT + BLOCK, **settings["options"])
        from redis.exceptions import ResponseError

        try:
            await self._redis.xgroup_create(settings["stream"], settings["group"], id="$", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def read(self) -> Sequence[Record]:
        stream, group = self._settings["stream"], self._settings["group"]
        block = None if self._from == "0" else int(BLOCK * 1000)
        found = await self._redis.xreadgroup(group, f"{group}-0", {stream: self._from}, count=BATCH, block=block)
        entries = _entries(found)
        if not entries and self._from == "0":
            self._from = ">"
        await self._ask_lag()
        return [self._record(id_, fields) for id_, fields in entries]

    async def acknowledge(self, records: Sequence[Record]) -> None:
        await self._redis.xack(self._settings["stream"], self._settings["group"], *[record.mark for record in records])

    async def close(self) -> None:
        if self._redis is not None:
            await self._redis.aclose()

    def _record(self, id_: bytes, fields: Mapping[bytes, bytes] | None) -> Record:
        """An entry as Knative's adapter sends it: its fields and values as one JSON array of strings."""
        mark = id_.decode()
        flat = [part for pair in (fields or {}).items() for part in pair]
        size = sum(map(len, flat))
        source = self._settings["source"]
        if fields is None:
            # Deleted from the stream after it had been given out: there is nothing left to send.
            return Record(mark, Event(mark, source, TYPE), "the entry was deleted from the stream before it was sent")
        if size > LIMIT:
            return Record(mark, Event(mark, source, TYPE), f"the entry is larger than {LIMIT} bytes")
        try:
            data = orjson.dumps([part.decode() for part in flat])
        except UnicodeDecodeError:
            raw = Event(mark, source, TYPE, {"datacontenttype": "application/octet-stream"}, b"\0".join(flat))
            return Record(mark, raw, "a field or a value of the entry is not UTF-8")
        return Record(mark, Event(mark, source, TYPE, {"datacontenttype": JSON}, data))

    async def _ask_lag(self) -> None:
        if time.monotonic() - self._asked < LAG_EVERY:
            return
        self._asked = time.monotonic()
        for row in await self._redis.xinfo_groups(self._settings["stream"]):
            if row.get("name") == self._settings["group"].encode() and row.get("lag") is not None:
                self.lag = int(row["lag"]) + int(row.get("pending") or 0)


def _entries(found: Any) -> list[tuple[bytes, Mapping[bytes, bytes] | None]]:
    """The entries of the one stream, as RESP2 has them: ``[[stream, [[id, fields], ...]]]``."""
    return list(found[0][1]) if found else []
