"""RedisStreamSource: the entries of a Redis stream, read as a consumer of a group."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import orjson

from relight.base.errors import BadInput, PlatformError, Problem
from relight.local.eventing.sources.feeding import BATCH, LIMIT, Feed, Plan, Record, overrides
from relight.local.eventing.world import Object
from relight.local.kube import kinds
from relight.wire.cloudevents import JSON, Event

TYPE = "dev.knative.sources.redisstream"
BLOCK = 2.0
"""Seconds that a read waits for an entry."""
LAG_EVERY = 5.0
"""Seconds between two questions for the lag."""
TIMEOUT = 10.0
"""Seconds for Redis to answer."""


class RedisStreams:
    """As Knative's adapter reads it: a group that starts at the stream's end, made where there is none."""

    kind = kinds.REDIS_STREAM_SOURCE

    def plan(self, obj: Object, secrets: Callable[[str, str], str]) -> Plan:
        spec, uid = obj.get("spec") or {}, obj["metadata"]["uid"]
        problems = [Problem(f"spec.{name}", "it is missing") for name in ("address", "stream") if not spec.get(name)]
        address = str(spec.get("address") or "")
        if "://" not in address:
            address = f"redis://{address}"
        parts = urlsplit(address)
        if parts.scheme not in ("redis", "rediss"):
            problems.append(Problem("spec.address", "a redis:// or rediss:// URL was expected"))
        options = spec.get("dialOptions") or spec.get("options") or {}
        for name in ("cert", "key"):
            if options.get(name):
                problems.append(Problem(f"spec.dialOptions.{name}", "client certificates are not taken here yet"))
        if problems:
            raise BadInput.of(problems)
        settings: dict[str, Any] = {
            "address": address,
            "stream": str(spec["stream"]),
            "group": str(spec.get("group") or f"relight-{uid}"),
            "verify": not options.get("skipVerify"),
        }
        if options.get("useTLS"):
            settings["address"] = urlunsplit(parts._replace(scheme="rediss"))
        reference = options.get("password") or {}
        if reference.get("name"):
            settings["password"] = secrets(str(reference["name"]), "password")
        ca = (options.get("caCert") or {}).get("secretKeyRef") or {}
        if ca.get("name"):
            settings["ca"] = secrets(str(ca["name"]), str(ca.get("key") or "ca.crt"))
        # The address without what it says of user and password: it goes out with every event.
        where = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "") + parts.path
        settings["source"] = f"{where.rstrip('/')}/{spec['stream']}"
        return Plan(((TYPE, settings["source"]),), settings, overrides(spec))

    def feed(self, plan: Plan) -> Feed:
        return _RedisFeed(plan.settings)


class _RedisFeed:
    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._redis: Any = None
        self._from = "0"
        """First what this consumer was given before and has not acknowledged; then ``>``: what is new."""
        self._asked = float("-inf")
        self.lag: int | None = None

    async def open(self) -> None:
        try:
            from redis import asyncio as client
            from redis.exceptions import ResponseError
        except ImportError:
            raise PlatformError("reading Redis needs another package: pip install 'relight[brokers]'") from None
        settings = self._settings
        options: dict[str, Any] = {"protocol": 2, "socket_connect_timeout": TIMEOUT, "socket_timeout": TIMEOUT + BLOCK}
        if settings.get("password") is not None:
            options["password"] = settings["password"]
        if settings["address"].startswith("rediss://"):
            options |= {
                "ssl_cert_reqs": ssl.CERT_REQUIRED if settings["verify"] else ssl.CERT_NONE,
                "ssl_ca_data": settings.get("ca"),
            }
        self._redis = client.Redis.from_url(settings["address"], **options)
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
