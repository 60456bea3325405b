"""From a broker's message to the record that a feed hands over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from relight.base.errors import BadInput
from relight.local.eventing.sources.feeding import LIMIT, Record
from relight.wire.bindings import Carrier
from relight.wire.cloudevents import Event, Value

BYTES = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Message:
    """A message, and the event that it becomes when it carries none itself."""

    mark: str
    carrier: Carrier
    id: str
    source: str
    type: str
    attributes: Mapping[str, Value] = field(default_factory=dict)
    again: bool = True

    def record(self, decode: Callable[[Carrier], Event | None]) -> Record:
        """The record. What cannot be delivered is poison, with its bytes as far as the log takes them."""
        carrier = self.carrier
        if len(carrier.body) > LIMIT:
            event = Event(self.id, self.source, self.type)
            return Record(self.mark, event, f"the message is larger than {LIMIT} bytes", self.again)
        try:
            event = decode(carrier) or self._plain(carrier.content_type)
        except BadInput as error:
            return Record(self.mark, self._plain(BYTES), f"no valid CloudEvent: {error.message}"[:300], self.again)
        return Record(self.mark, event, again=self.again)

    def _plain(self, content_type: str | None) -> Event:
        attributes = {name: value for name, value in self.attributes.items() if value != ""}
        if content_type:
            attributes["datacontenttype"] = content_type
        try:
            return Event(self.id, self.source, self.type, attributes, self.carrier.body)
        except BadInput:
            # The media type, or what stands in a header, is nothing that an event may say.
            return Event(self.id, self.source, self.type, {"datacontenttype": BYTES}, self.carrier.body)
