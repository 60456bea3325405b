"""KafkaSink and RedisStreamSink: what is posted to them is published, once it is on disk here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relight.base.errors import BadInput, Problem
from relight.local.eventing import statuses
from relight.local.eventing.naming import SINKS, hub_name
from relight.local.eventing.publishing import Departures
from relight.local.eventing.secrets import Secrets, StoredSecrets, optional
from relight.local.eventing.sources import redis as redis_source
from relight.local.eventing.sources.objects import needed
from relight.local.eventing.world import Object, Uids, World
from relight.local.kube import kinds
from relight.local.kube.kinds import Kind
from relight.net.publishing.kafka import Kafka, KafkaLink
from relight.net.publishing.publisher import Link, Publisher
from relight.net.publishing.redis import RedisLink

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@dataclass(frozen=True)
class Target:
    """Where a sink publishes to, checked: equal settings are the same target."""

    settings: object
    where: str
    link: Callable[[], Link]


class Sinks:
    """The reconciler."""

    kinds = SINKS

    def __init__(self, world: World, departures: Departures) -> None:
        self._world = world
        self._departures = departures
        self._uids = Uids()

    async def look(self, kind: Kind, namespace: str, name: str, obj: Object | None) -> None:
        world, hub = self._world, (namespace, hub_name(kind, name))
        gone = self._uids.replaced(kind, namespace, name, obj)
        if gone is not None:
            await self._departures.close(gone, hub)
        if obj is None:
            return
        uid, problem = obj["metadata"]["uid"], None
        title = f"{name} ({kind.kind})"
        try:
            target = _TARGETS[kind](obj.get("spec") or {}, StoredSecrets(world.store, namespace))
            await self._departures.open(
                uid,
                title,
                hub,
                target.settings,
                lambda: Publisher(target.link, target.where),
            )
        except BadInput as error:
            problem = error.message
            await self._departures.pause(uid, title, hub)
        status = statuses.of_sink(obj, world.hub_url(*hub), problem, world.stamp())
        world.store.set_status(kind, namespace, name, status)

    async def stop(self) -> None:
        """Publishers are closed once nothing is delivered any more."""


def _kafka(spec: dict[str, Any], secrets: Secrets) -> Target:
    problems = needed(spec, "bootstrapServers", "topic")
    mode = spec.get("contentMode") or "binary"
    if mode not in ("binary", "structured"):
        problems.append(Problem("spec.contentMode", f"binary or structured was expected, got {mode!r}"))
    if problems:
        raise BadInput.of(problems)
    kafka = _authenticated(spec, secrets)
    topic, partitions = str(spec["topic"]), spec.get("numPartitions")
    replicas = int(spec.get("replicationFactor") or 1)

    def link() -> Link:
        return KafkaLink(kafka, topic, structured=mode == "structured", partitions=partitions, replicas=replicas)

    return Target((kafka, topic, mode, partitions, replicas), f"Kafka {','.join(kafka.servers)}, topic {topic}", link)


def _authenticated(spec: dict[str, Any], secrets: Secrets) -> Kafka:
    """From the Secret of ``spec.auth``, whose keys are those of Knative's KafkaSink."""
    servers = tuple(map(str, spec["bootstrapServers"]))
    name = str((((spec.get("auth") or {}).get("secret") or {}).get("ref") or {}).get("name") or "")
    if not name:
        return Kafka(servers)
    protocol = secrets(name, "protocol").upper()
    if protocol not in PROTOCOLS:
        known = ", ".join(PROTOCOLS)
        raise BadInput.of([Problem(f"Secret {name}", f"protocol: one of {known} was expected, got {protocol!r}")])
    sasl = protocol.startswith("SASL")
    return Kafka(
        servers,
        tls=protocol.endswith("SSL"),
        ca=optional(secrets, name, "ca.crt") or None,
        certificate=optional(secrets, name, "user.crt") or None,
        key=optional(secrets, name, "user.key") or None,
        mechanism=optional(secrets, name, "sasl.mechanism", "PLAIN") if sasl else None,
        user=secrets(name, "user") if sasl else None,
        password=secrets(name, "password") if sasl else None,
    )


def _redis(spec: dict[str, Any], secrets: Secrets) -> Target:
    address, options = redis_source.connection(spec, secrets)
    stream = str(spec["stream"])
    where = f"Redis {address.rpartition('@')[2].rpartition('//')[2]}, stream {stream}"
    return Target((address, stream, options), where, lambda: RedisLink(address, stream, options))


_TARGETS: dict[Kind, Callable[[dict[str, Any], Secrets], Target]] = {
    kinds.KAFKA_SINK: _kafka,
    kinds.REDIS_STREAM_SINK: _redis,
}
