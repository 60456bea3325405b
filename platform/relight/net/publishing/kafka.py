"""Events into a Kafka topic, by CloudEvents' Kafka binding: confirmed by all replicas, keyed by ``partitionkey``."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from relight.base.errors import TooLarge
from relight.net.publishing.publisher import Link, missing
from relight.wire import bindings
from relight.wire.cloudevents import Event


@dataclass(frozen=True)
class Kafka:
    """How to reach a cluster. Certificates and the key are PEM."""

    servers: tuple[str, ...]
    tls: bool = False
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    mechanism: str | None = None
    """PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; None: no password."""
    user: str | None = None
    password: str | None = None

    def options(self) -> dict[str, Any]:
        """What aiokafka's clients take."""
        protocol = ("SASL_" if self.mechanism else "") + ("SSL" if self.tls else "PLAINTEXT")
        found: dict[str, Any] = {"bootstrap_servers": list(self.servers), "security_protocol": protocol}
        if self.mechanism:
            found |= {
                "sasl_mechanism": self.mechanism,
                "sasl_plain_username": self.user,
                "sasl_plain_password": self.password,
            }
        if self.tls:
            found["ssl_context"] = self._context()
        return found

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.ca)
        if self.certificate and self.key:
            # The ssl module reads a client's certificate from files alone.
            with TemporaryDirectory() as folder:
                pair = Path(folder) / "pair.pem"
                pair.touch(mode=0o600)
                pair.write_text(f"{self.certificate}\n{self.key}\n")
                context.load_cert_chain(pair)
        return context


def client() -> Any:
    """The library, imported when it is first needed."""
    try:
        import aiokafka
    except ImportError:
        raise missing("aiokafka") from None
    # What fails is raised, or seen when the cluster is asked; the library's own log says it every tenth of a second.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    return aiokafka


class KafkaLink(Link):
    """``partitions``: make the topic with so many where it is not there; None: it must be."""

    def __init__(
        self,
        kafka: Kafka,
        topic: str,
        *,
        structured: bool = False,
        partitions: int | None = None,
        replicas: int = 1,
    ) -> None:
        self._kafka = kafka
        self._topic = topic
        self._structured = structured
        self._partitions = partitions
        self._replicas = replicas
        self._producer: Any = None

    async def open(self) -> None:
        # The files of TLS are read in a thread.
        options = await asyncio.to_thread(self._kafka.options)
        if self._partitions is not None:
            await make_topic(options, self._topic, self._partitions, self._replicas)
        self._producer = client().AIOKafkaProducer(acks="all", **options)
        await self._producer.start()

    async def send(self, event: Event) -> None:
        from aiokafka.errors import MessageSizeTooLargeError

        encoded = bindings.encode_structured(event) if self._structured else None
        encoded = encoded or bindings.encode_binary(event, bindings.KAFKA)
        headers: Sequence[tuple[str, bytes]] = [(name, value.encode()) for name, value in encoded.headers.items()]
        if encoded.content_type:
            headers = [("content-type", encoded.content_type.encode()), *headers]
        key = event.get("partitionkey")
        try:
            await self._producer.send_and_wait(
                self._topic, encoded.body, key=None if key is None else str(key).encode(), headers=headers
            )
        except MessageSizeTooLargeError as error:
            raise TooLarge(f"the topic {self._topic} takes no event of {len(encoded.body)} bytes") from error

    async def close(self) -> None:
        if self._producer is not None:
            await self._producer.stop()


async def make_topic(options: dict[str, Any], topic: str, partitions: int, replicas: int) -> None:
    """Make a topic; one that is there stays as it is."""
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    admin = AIOKafkaAdminClient(**options)
    await admin.start()
    try:
        if topic not in await admin.list_topics():
            await admin.create_topics([NewTopic(topic, partitions, replicas)])
    finally:
        await admin.close()
