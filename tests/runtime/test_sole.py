"""A function's own model: unloaded and loaded by name, and chains of futures that wait for one."""

from __future__ import annotations

import json
import threading
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from runtime.serving import loaded
from runtime.test_v2_cases import ask

from relight.base.errors import NotReady
from relight.runtime.deadlines import Deadlines
from relight.runtime.pending import Waiting, chained
from relight.sdk import Array, Model, TensorSpec
from relight.wire.http import Request, Response


class Counting(Model):
    """Counts its loads and unloads."""

    inputs = (TensorSpec("x", "FP32", (-1,)),)
    outputs = (TensorSpec("y", "FP32", (-1,)),)
    max_batch_size = 4

    def __init__(self) -> None:
        self.calls: list[str] = []

    def load(self) -> None:
        self.calls.append("load")

    def warmup(self) -> None:
        self.calls.append("warmup")

    def unload(self) -> None:
        self.calls.append("unload")

    def infer(self, inputs: dict[str, Array]) -> dict[str, Array]:
        return {"y": inputs["x"]}


def post(path: str, body: object = None) -> Request:
    return Request("POST", path, body=b"" if body is None else json.dumps(body).encode())


INFER = post("/v2/models/m/infer", {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]})


def test_unload_and_load() -> None:
    model = Counting()
    engine = loaded(model, RELIGHT_MODEL="m")
    assert ask(engine, INFER).status == 200
    for _ in range(2):
        assert ask(engine, post("/v2/repository/models/m/unload")).status == 200
    assert model.calls == ["load", "warmup", "unload"]
    refused = ask(engine, INFER)
    assert refused.status == 503
    assert "POST /v2/repository/models/m/load loads it again" in json.loads(refused.body)["error"]
    assert ask(engine, Request("GET", "/v2/models/m/ready")).status == 503
    assert json.loads(ask(engine, post("/v2/repository/index")).body)[0]["state"] == "UNAVAILABLE"
    assert json.loads(ask(engine, post("/v2/repository/index", {"ready": True})).body) == []
    assert engine.ready() == (True, "OK"), "the function works, only this model does not"
    for _ in range(2):
        assert ask(engine, post("/v2/repository/models/m/load")).status == 200
    assert model.calls == ["load", "warmup", "unload", "load", "warmup"]
    assert ask(engine, INFER).status == 200
    (stat,) = json.loads(ask(engine, Request("GET", "/v2/models/m/stats")).body)["model_stats"]
    assert (stat["inference_count"], stat["inference_stats"]["success"]["count"]) == (2, 2), "they go on"
    engine.stop()
    engine.stop()
    assert model.calls[-1] == "unload"
    assert model.calls.count("unload") == 2


OTHERS = {
    "load": (post("/v2/repository/models/other/load"), 404),
    "unload": (post("/v2/repository/models/other/unload"), 404),
    "statistics": (Request("GET", "/v2/models/other/stats"), 404),
    "another version": (Request("GET", "/v2/models/m/versions/3/stats"), 404),
    "a configuration": (post("/v2/repository/models/m/load", {"parameters": {"config": "{}"}}), 404),
    "the configuration": (Request("GET", "/v2/models/m/config"), 404),
}


@pytest.mark.parametrize(("request_", "status"), OTHERS.values(), ids=OTHERS.keys())
def test_what_it_does_not_have(request_: Request, status: int) -> None:
    engine = loaded(Counting(), RELIGHT_MODEL="m")
    assert ask(engine, request_).status == status
    engine.stop()


class Failing(Counting):
    def load(self) -> None:
        super().load()
        if len(self.calls) > 1:
            raise ValueError("not again")


def test_a_load_that_fails_later_is_told_and_the_model_stays_unloaded() -> None:
    engine = loaded(Failing(), RELIGHT_MODEL="m")
    ask(engine, post("/v2/repository/models/m/unload"))
    assert ask(engine, post("/v2/repository/models/m/load")).status == 500
    assert ask(engine, INFER).status == 503
    engine.stop()


def test_no_step_has_models() -> None:
    from relight.sdk import Step

    engine = loaded(Step())
    for path in ("/v2/repository/index", "/v2/repository/models/m/load", "/v2/repository/models/m/unload"):
        assert ask(engine, post(path)).status == 404
    engine.stop()


# Chains.


class Chain:
    """A chain of two futures, and what became of what the first one brought."""

    def __init__(self) -> None:
        self.first: Future[int] = Future()
        self.second: Future[int] = Future()
        self.undone: list[int] = []
        self.waiting = chained(self.first, self._then, self.undone.append)

    def _then(self, value: int) -> Response | Waiting:
        if value == 0:
            return Response(204)
        if value < 0:
            raise NotReady("negative")
        return Waiting(self.second, lambda more: Response(value + more))

    def answer(self) -> Response:
        return self.waiting.finish(self.waiting.future.result(1))


def test_a_chain_brings_what_the_second_finished() -> None:
    chain = Chain()
    chain.first.set_result(200)
    assert not chain.waiting.future.done()
    chain.second.set_result(4)
    assert chain.answer() == Response(204)


def test_a_chain_may_end_at_its_first() -> None:
    chain = Chain()
    chain.first.set_result(0)
    assert chain.answer() == Response(204)


@pytest.mark.parametrize("where", ["first", "then", "second"])
def test_a_chain_raises_what_any_part_raised(where: str) -> None:
    chain = Chain()
    error = NotReady("negative")
    if where == "first":
        chain.first.set_exception(error)
    elif where == "then":
        chain.first.set_result(-1)
    else:
        chain.first.set_result(1)
        chain.second.set_exception(error)
    with pytest.raises(NotReady, match="negative"):
        chain.answer()
    assert chain.undone == []


def test_giving_up_cancels_what_is_going_on() -> None:
    early, late, between = Chain(), Chain(), Chain()
    assert early.waiting.future.cancel()
    assert early.first.cancelled()
    late.first.set_result(1)
    assert late.waiting.future.cancel()
    assert late.second.cancelled()
    between.first.set_running_or_notify_cancel()
    assert between.waiting.future.cancel()
    between.first.set_result(7)
    assert (early.undone, late.undone, between.undone) == ([], [], [7]), "what nobody wants any more goes back"


def test_deadlines_come_in_their_order_and_none_after_stop() -> None:
    deadlines, seen, done = Deadlines("tests"), [], threading.Event()
    deadlines.after(30, lambda: seen.append("never"))
    deadlines.after(0.02, lambda: (seen.append("second"), done.set()))
    deadlines.after(0.01, lambda: seen.append("first"))
    assert done.wait(10)
    assert seen == ["first", "second"]
    deadlines.stop()
    deadlines.stop()
    deadlines.after(0, lambda: seen.append("never"))
    assert seen == ["first", "second"]


def test_rows_are_counted_in_statistics() -> None:
    engine = loaded(Counting(), RELIGHT_MODEL="m")
    body: dict[str, Any] = {"inputs": [{"name": "x", "shape": [3], "datatype": "FP32", "data": [1, 2, 3]}]}
    assert ask(engine, post("/v2/models/m/infer", body)).status == 200
    assert ask(engine, post("/v2/models/m/infer", {"inputs": []})).status == 400
    (stat,) = json.loads(ask(engine, Request("GET", "/v2/models/stats")).body)["model_stats"]
    assert stat["inference_count"] == 3
    assert np.all([batch["batch_size"] == 3 for batch in stat["batch_stats"]])
    engine.stop()
