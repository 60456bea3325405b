"""The request that a step works on, and what it passes on to others."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from runtime.serving import loaded
from runtime.test_v2_cases import ask

from relight.sdk import Event, Step, current_request
from relight.wire.http import Headers, Request


class Telling(Step):
    """Tells what it would pass on."""

    def run(self, data: Any, event: Event | None) -> Any:
        current = current_request()
        assert current is not None
        assert current.event == event
        if data == "fail":
            raise ValueError("this request fails")
        return {"id": current.id, "passed_on": current.passed_on()}


TRACE, OTHER = "00-" + "1" * 32 + "-" + "2" * 16 + "-01", "00-" + "3" * 32 + "-" + "4" * 16 + "-01"
EVENT = {"ce-specversion": "1.0", "ce-id": "1", "ce-type": "t", "ce-source": "/s"}
PASSED: dict[str, tuple[dict[str, str], str | None, dict[str, str]]] = {
    "nothing": ({}, None, {}),
    "an id": ({"X-Request-Id": "7"}, "7", {"x-request-id": "7"}),
    "a trace": (
        {"traceparent": TRACE, "tracestate": "a=b", "baggage": "c=d", "authorization": "secret"},
        None,
        {"traceparent": TRACE, "tracestate": "a=b", "baggage": "c=d"},
    ),
    "an event's own trace goes first": (
        EVENT | {"ce-traceparent": OTHER, "traceparent": TRACE, "x-request-id": "7"},
        "7",
        {"x-request-id": "7", "traceparent": OTHER},
    ),
}


@pytest.mark.parametrize(("headers", "request_id", "passed_on"), PASSED.values(), ids=PASSED.keys())
def test_what_is_passed_on(headers: dict[str, str], request_id: str | None, passed_on: dict[str, str]) -> None:
    engine = loaded(Telling())
    response = ask(engine, Request("POST", "/", Headers({"content-type": "application/json"} | headers), b"{}"))
    assert json.loads(response.body) == {"id": request_id, "passed_on": passed_on}
    engine.stop()


def test_outside_of_a_request_there_is_none() -> None:
    engine = loaded(Telling())
    given = Headers({"content-type": "application/json", "x-request-id": "7"})
    assert ask(engine, Request("POST", "/", given, b'"fail"')).status == 500
    assert current_request() is None
    # Every thread has its own, and nothing of a request that failed stays in it.
    seen: list[Any] = []
    barrier = threading.Barrier(2)

    def call(name: str) -> None:
        barrier.wait(10)
        headers = Headers({"content-type": "application/json", "x-request-id": name})
        seen.append((name, json.loads(ask(engine, Request("POST", "/", headers, b"{}")).body)["id"]))

    threads = [threading.Thread(target=call, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(seen) == [("a", "a"), ("b", "b")]
    engine.stop()
