"""One function at work: loading, failing, stopping, and what its metrics and answers tell."""

from __future__ import annotations

import json
import logging
import threading
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from programs.hosting import until
from runtime.serving import loaded

from relight.runtime.context import FunctionSettings
from relight.runtime.engine import Engine
from relight.runtime.lifecycle import State
from relight.runtime.pending import Pending, Waiting
from relight.sdk import Array, BadInput, Event, Model, Step, TensorSpec
from relight.wire.http import Headers, Request, Response


class Blocking(Step):
    """Loads, and runs, until it is let go."""

    concurrency = 1

    def __init__(self) -> None:
        self.loading = threading.Event()
        self.go = threading.Event()
        self.unloaded = threading.Event()
        self.ran: list[Any] = []

    def load(self) -> None:
        self.loading.set()
        assert self.go.wait(10)

    def run(self, data: Any, event: Event | None) -> Any:
        self.ran.append(data)
        assert self.go.wait(10)
        return data

    def unload(self) -> None:
        self.unloaded.set()


def post(data: object, path: str = "/", **headers: str) -> Request:
    return Request("POST", path, Headers({"content-type": "application/json"} | headers), json.dumps(data).encode())


def answered(answer: Response | Pending) -> Response:
    if isinstance(answer, Pending):
        answer.future.exception(10)
        return answer.respond()
    return answer


def test_it_answers_while_it_loads_and_works_when_it_has() -> None:
    function = Blocking()
    engine = Engine(lambda: function, FunctionSettings())
    assert engine.ready() == (False, "created")
    ready = threading.Event()
    engine.listen(lambda state, _: ready.set() if state is State.READY else None)
    engine.start()
    engine.start()
    assert function.loading.wait(5)
    assert engine.ready() == (False, "loading")
    assert engine.alive() == (True, "OK")
    refused = answered(engine.dispatch(post(1)))
    assert (refused.status, dict(refused.headers)["retry-after"]) == (503, "1")
    function.go.set()
    assert ready.wait(5)
    assert engine.ready() == (True, "OK")
    assert answered(engine.dispatch(post(1))).body == b"1"
    assert set(engine.timeline.phases) == {"import", "fetch", "load", "warmup"}
    engine.stop()
    assert engine.ready() == (False, "stopped")


def test_stop_during_a_load_ends_at_once_and_what_the_load_brings_is_let_go_of() -> None:
    function = Blocking()
    engine = Engine(lambda: function, FunctionSettings())
    engine.start()
    assert function.loading.wait(5)
    engine.stop()
    engine.stop()
    assert engine.lifecycle.state is State.STOPPED
    assert not function.unloaded.is_set()
    function.go.set()
    assert function.unloaded.wait(5)
    assert engine.lifecycle.state is State.STOPPED


def test_drain_takes_what_was_on_its_way_and_refuse_does_not() -> None:
    function = Blocking()
    function.go.set()
    engine = loaded(function)
    engine.drain()
    assert engine.ready() == (False, "draining")
    assert answered(engine.dispatch(post(1))).status == 200
    engine.refuse()
    assert answered(engine.dispatch(post(1))).status == 503
    engine.stop()
    assert function.unloaded.is_set()


class Broken(Model):
    def __init__(self, error: BaseException) -> None:
        self._error = error

    def load(self) -> None:
        raise self._error


BROKEN = {
    "an exception": (ValueError("first line\nno weights"), "load failed: ValueError: no weights"),
    "no text": (KeyError(), "load failed: KeyError"),
    "an exit": (SystemExit(0), "load failed: SystemExit: 0"),
    "a known error": (BadInput("weights are of another model"), "load failed: weights are of another model"),
}


@pytest.mark.parametrize(("error", "reason"), BROKEN.values(), ids=BROKEN.keys())
def test_a_load_that_fails_is_told_to_all_and_logged_once(
    error: BaseException, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "relight"):
        engine = loaded(Broken(error))
        for _ in range(3):
            answer = answered(engine.dispatch(post({}, "/v2/models/broken/infer")))
            assert (answer.status, json.loads(answer.body)) == (503, {"error": f"the function's {reason}"})
            assert "retry-after" not in dict(answer.headers)
    assert engine.ready() == (False, reason)
    assert engine.alive() == (True, "OK")
    assert [record.message for record in caplog.records if record.exc_info] == [
        "load.failed phase=load: every request is refused from now on"
    ]
    engine.stop()
    assert engine.lifecycle.state is State.STOPPED


def test_an_import_that_fails_names_its_phase() -> None:
    def source() -> Step:
        raise ImportError("no module named 'torch'")

    engine = Engine(source, FunctionSettings())
    failed = threading.Event()
    engine.listen(lambda state, _: failed.set() if state is State.FAILED else None)
    engine.start()
    assert failed.wait(5)
    assert engine.lifecycle.reason == "import failed: ImportError: no module named 'torch'"


def test_a_bad_environment_is_told_and_does_not_end_the_process() -> None:
    engine = Blocking().new_engine({"RELIGHT_QUEUE_LIMIT": "many", "RELIGHT_MODEL_VERSION": "0"})
    failed = threading.Event()
    engine.listen(lambda state, _: failed.set() if state is State.FAILED else None)
    engine.start()
    assert failed.wait(5)
    assert "RELIGHT_QUEUE_LIMIT: expected a whole number above 0, got 'many'" in engine.lifecycle.reason
    assert "RELIGHT_MODEL_VERSION" in engine.lifecycle.reason


def test_who_leaves_is_not_run_and_counted() -> None:
    function = Blocking()
    function.go.set()
    engine = loaded(function)
    function.go.clear()
    pendings = [engine.dispatch(post(number)) for number in range(4)]
    assert all(isinstance(pending, Pending) for pending in pendings)
    pendings[2].abandon()
    function.go.set()
    assert [answered(pendings[number]).body for number in (0, 1, 3)] == [b"0", b"1", b"3"]
    assert function.ran == [0, 1, 3]
    metrics = engine.metrics.render().decode()
    assert 'relight_requests_total{code="200"} 3.0' in metrics
    assert 'relight_requests_total{code="499"} 1.0' in metrics
    assert "relight_requests_in_flight 0.0" in metrics
    assert 'relight_load_seconds{phase="load"}' in metrics
    engine.stop()


def test_a_full_queue_is_503_with_retry_after() -> None:
    function = Blocking()
    function.go.set()
    engine = loaded(function, RELIGHT_QUEUE_LIMIT="2")
    function.go.clear()
    running = engine.dispatch(post(0))
    until(lambda: function.ran, "the first one runs, and has left the queue", 5)
    waiting = [engine.dispatch(post(number)) for number in (1, 2)]
    full = answered(engine.dispatch(post(3)))
    assert (full.status, dict(full.headers)["retry-after"]) == (503, "1")
    function.go.set()
    assert [answered(one).status for one in (running, *waiting)] == [200] * 3
    engine.stop()


class Wrong(Model):
    """Returns what it was told to."""

    inputs = (TensorSpec("x", "FP32", (-1,)),)
    outputs = (TensorSpec("y", "FP32", (-1, 2)),)

    def __init__(self, returned: Any) -> None:
        self.returned = returned

    def infer(self, inputs: dict[str, Array]) -> Any:
        return self.returned


WRONG = {
    "nothing": None,
    "another name": {"z": np.zeros((1, 2))},
    "another shape": {"y": np.zeros((1, 3))},
    "text for numbers": {"y": np.array([["a", "b"]])},
}


@pytest.mark.parametrize("returned", WRONG.values(), ids=WRONG.keys())
def test_a_model_that_returns_something_else_is_a_500(returned: Any) -> None:
    engine = loaded(Wrong(returned), RELIGHT_MODEL="m")
    body = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}
    assert answered(engine.dispatch(post(body, "/v2/models/m/infer"))).status == 500
    engine.stop()


def test_a_model_may_return_another_precision() -> None:
    engine = loaded(Wrong({"y": [[1, 2]]}), RELIGHT_MODEL="m")
    body = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}
    answer = answered(engine.dispatch(post(body, "/v2/models/m/infer")))
    assert json.loads(answer.body)["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]
    timing = dict(answer.headers)["server-timing"]
    assert [part.split(";")[0] for part in timing.split(", ")] == ["queue", "infer"]
    engine.stop()


class EventModel(Wrong):
    """Takes and gives events in a form of its own."""

    reply_type = "doubled"

    def event_inputs(self, event: Event) -> dict[str, Array]:
        data = event.json()
        if "number" not in data:
            raise BadInput("no number", param="number")
        return {"x": np.array([data["number"]], np.float32)}

    def infer(self, inputs: dict[str, Array]) -> Any:
        return {"y": np.stack([inputs["x"], inputs["x"] * 2], axis=1)}

    def event_reply(self, event: Event, outputs: dict[str, Array]) -> Any:
        return {"of": event.id, "doubled": outputs["y"][:, 1]}


CE = {"ce-specversion": "1.0", "ce-id": "1", "ce-type": "number", "ce-source": "/s"}


def test_a_models_own_form_of_events() -> None:
    engine = loaded(EventModel(None), K_SERVICE="double", RELIGHT_NAMESPACE="ns")
    answer = answered(engine.dispatch(post({"number": 21}, **CE)))
    headers = dict(answer.headers)
    assert (answer.status, json.loads(answer.body)) == (200, {"of": "1", "doubled": [42.0]})
    assert (headers["ce-type"], headers["ce-source"], headers["ce-causationid"]) == ("doubled", "/ns/double", "1")
    assert headers["ce-id"] != "1"
    assert answered(engine.dispatch(post({}, **CE))).status == 400
    engine.stop()


def test_a_future_that_is_cancelled_by_others_is_an_answer() -> None:
    engine = loaded(EventModel(None))
    future: Future[Any] = Future()
    pending = engine._pending(post(1), Waiting(future, lambda result: Response(200)), 0.0)
    future.cancel()
    assert pending.respond().status == 503
    engine.stop()
