"""``POST /``: a CloudEvent in, a CloudEvent or nothing out; or plain JSON in and out.

A reply never looks like its cause: it has an id and a source of its own and another type, so that a trigger on the
incoming type does not go round, and it names its cause in ``causationid``.

An event is run once: the answer is given again to whoever sends it again (``dedup``). A reply's id is made from the
function and the cause, so that it stays the same even where the answer was forgotten and the event is run a second
time: whoever gets both replies can tell that they are one.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from relight.base.errors import BadInput, Failed, TooLarge, Unsupported
from relight.runtime.answers import v2 as v2_answers
from relight.runtime.batcher import Job
from relight.runtime.calls import working_on
from relight.runtime.dedup import key_of
from relight.runtime.function import Function
from relight.runtime.pending import Waiting, as_future, as_is
from relight.runtime.served import Served
from relight.runtime.step import Step
from relight.wire import cloudevents, prewarm, v2
from relight.wire.cloudevents import Event
from relight.wire.http import Headers, Request, Response, media_type

if TYPE_CHECKING:
    from relight.runtime.engine import Engine

PASSED_ON = ("traceparent", "tracestate", "baggage", "correlationid")
"""Extensions that tie a chain together: a reply carries its cause's."""


DEDUP = "relight-dedup"
"""The header by which a broker says ``off``: run this event even if it was answered before."""
MAX_BATCH = 100
"""Events in one batch at most: each of them waits in the same bounded queue."""
_REPLIES = uuid.UUID("6f1f0f5e-9d1c-5c39-9e0c-6d6e0f0b8a51")


def receive(engine: Engine, request: Request, parameters: Mapping[str, str]) -> Response | Waiting:
    function = engine.function
    mode = cloudevents.mode(request.headers)
    once = (request.headers.get(DEDUP) or "").strip().lower() != "off"
    if mode == "batch":
        return _batch(engine, request, cloudevents.decode_batch(request.headers, request.body), once)
    if mode != "none":
        event = cloudevents.decode(request.headers, request.body)
        if prewarm.is_prewarm(event):
            return _prewarmed(engine, event)
        return Waiting(_run(engine, request, event, once), as_is)
    if not isinstance(function, Step):
        return engine.models.use(None, None, lambda served: v2_answers.computing(served, request))
    data = _plain(request)

    def work() -> Response:
        with working_on(request, None):
            return reply(function, None, function.run(data, None))

    return Waiting(engine.workers.submit(work), as_is)


def _prewarmed(engine: Engine, event: Event) -> Response | Waiting:
    """A call is expected: 204 when there is nothing left to load. Nothing of the author's is run."""
    if isinstance(engine.function, Step):
        return Response(204)
    data = event.json() if event.type == prewarm.TYPE else None
    model = data.get("model") if isinstance(data, dict) else None
    return engine.models.use(model if isinstance(model, str) else None, None, lambda served: Response(204))


def _run(engine: Engine, request: Request, event: Event, once: bool) -> Future[Response]:
    """The answer to an event: from a run, or from the run that answered it before."""
    start = _start(engine, request, event, once)
    return engine.dedup.submit(key_of(event), start) if once else start()


def _start(engine: Engine, request: Request, event: Event, once: bool) -> Callable[[], Future[Response]]:
    """What begins the run of an event."""
    function = engine.function
    if not isinstance(function, Step):
        return lambda: as_future(
            engine.models.use(None, None, lambda one: _to_model(engine, one, event, request, once))
        )
    step, data = function, _data(event)

    def work() -> Response:
        with working_on(request, event):
            return reply(step, event, step.run(data, event), once=once)

    return lambda: engine.workers.submit(work)


def _to_model(engine: Engine, served: Served, event: Event, request: Request, once: bool) -> Waiting:
    model = served.model

    def work() -> Response:
        with working_on(request, event):
            inputs = model.event_inputs(event)
            computed = served.submit(Job(inputs)).result()
            return reply(model, event, model.event_reply(event, computed.outputs), once=once)

    return Waiting(engine.workers.submit(work), as_is)


def _batch(engine: Engine, request: Request, events: list[Event], once: bool) -> Waiting:
    """Every event by itself; the replies as a batch, or 204 if there are none.

    One failure fails the batch, once all are through: what has been answered by then is not run again when the batch
    is sent again.
    """
    if len(events) > MAX_BATCH:
        raise TooLarge(f"a batch of {len(events)} events is more than the {MAX_BATCH} that are taken at once")
    engine.function  # noqa: B018  raises where there is none to answer even an empty batch
    futures = [_run(engine, request, event, once) for event in events]
    return Waiting(_all(futures), as_is)


def _all(futures: list[Future[Response]]) -> Future[Response]:
    """Done when all are; the first failure in their order, else their events as one batch."""
    whole: Future[Response] = Future()
    left = len(futures)
    lock = threading.Lock()

    def finish() -> None:
        if not whole.set_running_or_notify_cancel():
            return
        try:
            whole.set_result(_as_batch([future.result(timeout=0) for future in futures]))
        except BaseException as error:  # an author's sys.exit, carried here by the future
            whole.set_exception(error)

    def one_done(_: Future[Response]) -> None:
        nonlocal left
        with lock:
            left -= 1
            last = left == 0
        if last:
            finish()

    if not futures:
        finish()
    for future in futures:
        future.add_done_callback(one_done)
    return whole


def _as_batch(responses: list[Response]) -> Response:
    replies = [
        cloudevents.decode(Headers(response.headers), response.body) for response in responses if response.status != 204
    ]
    if not replies:
        return Response(204)
    headers, body = cloudevents.encode_batch(replies)
    return Response(200, headers, body)


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


def reply(function: Function, cause: Event | None, result: Any, *, once: bool = True) -> Response:
    """What the author's code returned, as the caller expects it. ``once`` False: the reply gets a new id each time."""
    if result is None:
        return Response(204)
    if not isinstance(result, Event) and cause is None:
        return Response(200, (("content-type", v2.JSON),), _json(result))
    event = result if isinstance(result, Event) else _answer(function, cause, result, once)
    if cause is not None and event.get("causationid") is None:
        event = event.replace(causationid=cause.id)
    headers, body = cloudevents.encode_binary(event)
    return Response(200, headers, body)


def _answer(function: Function, cause: Event | None, result: Any, once: bool) -> Event:
    assert cause is not None
    source = function.context.source
    id_ = str(uuid.uuid5(_REPLIES, f"{source}\0{cause.source}\0{cause.id}\0{cause.digest()}")) if once else None
    passed_on: dict[str, Any] = {name: cause.get(name) for name in PASSED_ON}
    return Event.of(
        function.reply_type or f"{cause.type}.response",
        source,
        _json(result),
        id=id_,
        time=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        datacontenttype=v2.JSON,
        **passed_on,
    )


def _json(result: Any) -> bytes:
    try:
        return v2.dump(result)
    except TypeError as error:
        raise Failed(f"the function returned what JSON cannot hold: {error}") from error
