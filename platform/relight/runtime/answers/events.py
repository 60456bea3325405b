"""``POST /``: a CloudEvent in, a CloudEvent or nothing out; or plain JSON in and out.

A reply never looks like its cause: it has an id and a source of its own and another type, so that a trigger on the
incoming type does not go round, and it names its cause in ``causationid``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from relight.base.errors import BadInput, Failed, Unsupported
from relight.runtime.answers import v2 as v2_answers
from relight.runtime.batcher import Job
from relight.runtime.calls import working_on
from relight.runtime.function import Function
from relight.runtime.pending import Waiting
from relight.runtime.served import Served
from relight.runtime.step import Step
from relight.wire import cloudevents, v2
from relight.wire.cloudevents import Event
from relight.wire.http import Request, Response, media_type

if TYPE_CHECKING:
    from relight.runtime.engine import Engine

PASSED_ON = ("traceparent", "tracestate", "baggage", "correlationid")
"""Extensions that tie a chain together: a reply carries its cause's."""


def receive(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Response | Waiting:
    function = engine.function
    mode = cloudevents.mode(request.headers)
    if mode == "batch":
        raise Unsupported("batches of events are not taken; send each event on its own")
    event = None if mode == "none" else cloudevents.decode(request.headers, request.body)
    if not isinstance(function, Step):
        return engine.models.use(None, None, lambda served: _to_model(engine, served, event, request))
    data = _plain(request) if event is None else _data(event)

    def work() -> Response:
        with working_on(request, event):
            return reply(function, event, function.run(data, event))

    return Waiting(engine.workers.submit(work), _as_is)


def _to_model(engine: Engine, served: Served, event: Event | None, request: Request) -> Waiting:
    if event is None:
        return v2_answers.computing(served, request)
    model = served.model

    def work() -> Response:
        with working_on(request, event):
            inputs = model.event_inputs(event)
            computed = served.submit(Job(inputs)).result()
            return reply(model, event, model.event_reply(event, computed.outputs))

    return Waiting(engine.workers.submit(work), _as_is)


def _as_is(response: Response) -> Response:
    return response


def _plain(request: Request) -> Any:
    """The JSON of a plain request; None where there is no body. ``curl -d`` says it is a form: what parses is taken."""
    if not request.body:
        return None
    content_type = request.headers.get("content-type")
    try:
        return v2.parse(request.body)
    except BadInput:
        if content_type is not None and not cloudevents.is_json(content_type):
            kind = media_type(content_type)[:80]
            raise Unsupported(f"expected JSON or a CloudEvent, got {kind!r}") from None
        raise


def _data(event: Event) -> Any:
    """An event's data for a step: JSON where it says so or says nothing, else the bytes."""
    if event.data is None or (event.content_type is not None and not cloudevents.is_json(event.content_type)):
        return event.data
    return event.json()


def reply(function: Function, cause: Event | None, result: Any) -> Response:
    """What the author's code returned, as the caller expects it."""
    if result is None:
        return Response(204)
    if not isinstance(result, Event) and cause is None:
        return Response(200, (("content-type", v2.JSON),), _json(result))
    event = result if isinstance(result, Event) else _answer(function, cause, result)
    if cause is not None and event.get("causationid") is None:
        event = event.replace(causationid=cause.id)
    headers, body = cloudevents.encode_binary(event)
    return Response(200, headers, body)


def _answer(function: Function, cause: Event | None, result: Any) -> Event:
    assert cause is not None
    passed_on: dict[str, Any] = {name: cause.get(name) for name in PASSED_ON}
    return Event.of(
        function.reply_type or f"{cause.type}.response",
        function.context.source,
        _json(result),
        time=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        datacontenttype=v2.JSON,
        **passed_on,
    )


def _json(result: Any) -> bytes:
    try:
        return v2.dump(result)
    except TypeError as error:
        raise Failed(f"the function returned what JSON cannot hold: {error}") from error
