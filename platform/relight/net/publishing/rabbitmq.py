"""Events into a RabbitMQ exchange: persistent messages, confirmed, with the attributes in ``ce-`` headers.

The form is what Knative's RabbitmqSource reads back as the same event.
"""

from __future__ import annotations

from typing import Any

from relight.net.publishing.publisher import TIMEOUT, Link, missing
from relight.wire import bindings
from relight.wire.cloudevents import Event


def client() -> Any:
    """The library, imported when it is first needed."""
    try:
        import aio_pika
    except ImportError:
        raise missing("aio-pika") from None
    return aio_pika


class RabbitLink(Link):
    """``exchange`` empty: the default one, where the routing key is a queue's name.

    A message that no queue takes is a failure: it would be lost.
    """

    def __init__(self, url: str, exchange: str, routing_key: str) -> None:
        self._url = url
        self._name = exchange
        self._routing_key = routing_key
        self._connection: Any = None
        self._exchange: Any = None

    async def open(self) -> None:
        self._connection = await client().connect(self._url, timeout=TIMEOUT)
        channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
        self._exchange = await channel.get_exchange(self._name) if self._name else channel.default_exchange

    async def send(self, event: Event) -> None:
        encoded = bindings.encode_binary(event, bindings.AMQP)
        library = client()
        message = library.Message(
            encoded.body,
            headers={**encoded.headers, **({"content-type": encoded.content_type} if encoded.content_type else {})},
            content_type=encoded.content_type,
            message_id=event.id,
            delivery_mode=library.DeliveryMode.PERSISTENT,
        )
        await self._exchange.publish(message, self._routing_key, mandatory=True)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
