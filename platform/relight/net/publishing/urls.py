"""From one URL to a publisher: the broker's own scheme, and where in it events go.

======================================================  ================================================================
``kafka://HOST:PORT,HOST:PORT/TOPIC``                   ``?mode=structured``
``amqp://USER:PASSWORD@HOST:PORT/VHOST?routing_key=K``  ``&exchange=NAME``; without one, the key is a queue's name
``nats://HOST:PORT/SUBJECT``                            a JetStream stream must keep the subject
``redis://USER:PASSWORD@HOST:PORT/DB?stream=NAME``      ``rediss://`` for TLS
======================================================  ================================================================
"""

from __future__ import annotations

from urllib.parse import SplitResult, parse_qs, unquote, urlsplit, urlunsplit

from relight.base.errors import BadInput
from relight.net.publishing.kafka import Kafka, KafkaLink
from relight.net.publishing.nats import Nats, NatsLink
from relight.net.publishing.publisher import Publisher
from relight.net.publishing.rabbitmq import RabbitLink
from relight.net.publishing.redis import RedisLink

_FORMS = {
    "kafka": "kafka://HOST:PORT/TOPIC",
    "amqp": "amqp://USER:PASSWORD@HOST:PORT/VHOST?routing_key=KEY",
    "nats": "nats://HOST:PORT/SUBJECT",
    "redis": "redis://HOST:PORT/DB?stream=NAME",
}


def publisher(url: str) -> Publisher:
    """BadInput where the URL is of no known form; it never repeats a password."""
    parts = urlsplit(url)
    given = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    plain = urlunsplit(parts._replace(query="", fragment=""))
    where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    match parts.scheme:
        case "kafka":
            topic = _path(parts, "kafka")
            servers = tuple(parts.netloc.split(","))
            structured = given.get("mode") == "structured"
            return Publisher(lambda: KafkaLink(Kafka(servers), topic, structured=structured), f"{where}/{topic}")
        case "amqp" | "amqps":
            key, exchange = given.get("routing_key", ""), given.get("exchange", "")
            if not key and not exchange:
                raise _wrong("amqp")
            return Publisher(lambda: RabbitLink(plain, exchange, key), where)
        case "nats" | "tls":
            subject = _path(parts, "nats")
            server = urlunsplit(parts._replace(path="", query="", fragment=""))
            return Publisher(lambda: NatsLink(Nats(server), subject), f"{where}/{subject}")
        case "redis" | "rediss":
            stream = given.get("stream", "")
            if not stream:
                raise _wrong("redis")
            return Publisher(lambda: RedisLink(plain, stream), where)
    raise BadInput(f"a URL of one of these forms was expected: {', '.join(_FORMS.values())}")


def _path(parts: SplitResult, kind: str) -> str:
    found = unquote(parts.path.strip("/"))
    if not found or not parts.netloc:
        raise _wrong(kind)
    return found


def _wrong(kind: str) -> BadInput:
    return BadInput(f"a URL such as {_FORMS[kind]} was expected")
