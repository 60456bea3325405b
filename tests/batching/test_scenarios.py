"""What users of other servers suffered from, through our own protocol on real sockets.

One bad request failed the whole batch, answers went to the wrong caller, a hang-up was everybody's error
(MLServer 1306, 903; KServe 1666, 2275); and a configured wait was added to every request though nothing else came
(KServe 1666).
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from programs.hosting import until
from runtime.serving import Served, served

from relight.sdk import Array, BatchingSettings, Model, TensorSpec

POISON = 666.0


class Ten(Model):
    """Ten times ``x``. Stands still while ``go`` is not set, and keeps the rows of each run."""

    inputs = (TensorSpec("x", "FP32", (-1, 3)),)
    outputs = (TensorSpec("y", "FP32", (-1, 3)),)
    max_batch_size = 4
    batching: BatchingSettings | None = BatchingSettings(4, max_queue_delay=0.05)
    on_loop = False

    def __init__(self) -> None:
        self.go = threading.Event()
        self.entered = threading.Semaphore(0)
        self.runs: list[list[float]] = []

    def infer(self, inputs: dict[str, Array]) -> dict[str, Array]:
        x = inputs["x"]
        self.runs.append(x[:, 0].tolist())
        self.entered.release()
        assert self.go.wait(10)
        if POISON in x:
            raise ValueError("a row that the model cannot bear")
        return {"y": x * 10}


@pytest.fixture
def ten() -> Iterator[tuple[Ten, Served]]:
    model = Ten()
    with served(model, RELIGHT_MODEL="m", RELIGHT_QUEUE_LIMIT="12") as here:
        yield model, here
        model.go.set()


class Call:
    """One request on a connection of its own: sent when made, read when asked for."""

    def __init__(self, here: Served, x: Any, datatype: str = "FP32", **parameters: Any) -> None:
        array = np.array(x)
        tensor = {"name": "x", "shape": list(array.shape), "datatype": datatype, "data": array.ravel().tolist()}
        body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
        self.want = (array * 10).ravel().tolist()
        self.socket = here.connect()
        head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        self.socket.sendall(head % len(body) + body)

    def hang_up(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def read(self) -> tuple[int, dict[str, str], Any]:
        parts = []
        with self.socket:
            while part := self.socket.recv(65536):
                parts.append(part)
        head, _, body = b"".join(parts).partition(b"\r\n\r\n")
        headers = dict(re.findall(r"([\w-]+): ([^\r]*)", head.decode()))
        return int(head.split()[1]), headers, json.loads(body)

    def right(self) -> None:
        status, _, body = self.read()
        assert (status, body["outputs"][0]["data"]) == (200, self.want)


def busy(model: Ten, here: Served) -> Call:
    call = Call(here, [[-1, 0, 0]])
    assert model.entered.acquire(timeout=10)
    return call


def waiting(here: Served, count: int) -> None:
    until(lambda: here.engine.models.queued == count, f"{count} requests wait", 10)


def test_each_passenger_leaves_alone(ten: tuple[Ten, Served]) -> None:
    model, here = ten
    first = busy(model, here)
    good = [Call(here, [[1, 2, 3]]), Call(here, [[4, 5, 6], [7, 8, 9]])]
    large = Call(here, [[row, row, row] for row in range(100, 109)])
    other = Call(here, [[11, 12, 13]], mode="other")
    gone = Call(here, [[21, 22, 23]])
    late = Call(here, [[31, 32, 33]], timeout=20_000)
    bad = [Call(here, [[1, 2, 3]], "INT64"), Call(here, [[1, 2, 3, 4, 5]]), Call(here, [[1, 2, 3]], timeout="soon")]
    assert [call.read()[0] for call in bad] == [400, 400, 400]
    assert late.read()[0] == 504, "at its deadline, though the model stands still"
    waiting(here, 5)
    gone.hang_up()
    waiting(here, 4)
    model.go.set()
    for call in (first, *good, large, other):
        call.right()
    rows = [row for run in model.runs for row in run]
    assert not {21, 31} & set(rows), "who left is not computed"
    assert max(map(len, model.runs)) <= 4, "the nine rows are split"
    assert [11] in model.runs, "other parameters, another run"
    assert any(len(run) > 1 for run in model.runs)
    assert sorted(rows) == [-1, 1, 4, 7, 11, *range(100, 109)], "and nobody is computed twice"


def test_a_poisoned_row_is_one_callers_error(ten: tuple[Ten, Served]) -> None:
    model, here = ten
    calls = [busy(model, here)]
    calls += [Call(here, [[number, number, number]]) for number in range(5)]
    poisoned = Call(here, [[POISON, 0, 0]])
    calls += [Call(here, [[number, number, number]]) for number in range(10, 14)]
    waiting(here, 10)
    model.go.set()
    for call in calls:
        call.right()
    status, _, body = poisoned.read()
    assert status == 500
    assert "cannot bear" not in body["error"]


def test_cancel_one_of_four_and_the_other_three_answer(ten: tuple[Ten, Served]) -> None:
    model, here = ten
    first = busy(model, here)
    calls = [Call(here, [[number, 0, 0]]) for number in range(4)]
    waiting(here, 4)
    calls.pop(2).hang_up()
    waiting(here, 3)
    model.go.set()
    for call in (first, *calls):
        call.right()
    assert sorted(row for run in model.runs[1:] for row in run) == [0, 1, 3]


def test_a_hang_up_on_board_is_nobodys_error(ten: tuple[Ten, Served]) -> None:
    model, here = ten
    first = busy(model, here)
    waiting(here, 0)
    first.hang_up()
    calls = [Call(here, [[number, 0, 0]]) for number in range(3)]
    waiting(here, 3)
    model.go.set()
    for call in calls:
        call.right()


def test_a_full_queue_is_503_with_retry_after(ten: tuple[Ten, Served]) -> None:
    model, here = ten
    calls = [busy(model, here)]
    calls += [Call(here, [[number, 0, 0]]) for number in range(12)]
    waiting(here, 12)
    status, headers, body = Call(here, [[99, 0, 0]]).read()
    assert (status, headers["retry-after"]) == (503, "1")
    assert "12 requests are waiting" in body["error"]
    model.go.set()
    for call in calls:
        call.right()


class Rare(Ten):
    batching = BatchingSettings(4, max_queue_delay=5.0)


def test_a_long_wait_for_company_costs_a_lone_request_nothing() -> None:
    model = Rare()
    model.go.set()
    with served(model, RELIGHT_MODEL="m") as here:
        for number in range(30):
            status, headers, _ = Call(here, [[number, 0, 0]]).read()
            queued = float(re.search(r"queue;dur=([\d.]+)", headers["server-timing"])[1])  # type: ignore[index]
            assert status == 200
            assert queued < 2500, "milliseconds; five seconds were allowed"
    assert [len(run) for run in model.runs] == [1] * 30


class Urgent(Ten):
    max_batch_size = 1
    batching = BatchingSettings(1, priority_levels=2, default_priority_level=2)


def test_the_urgent_go_first() -> None:
    model = Urgent()
    with served(model, RELIGHT_MODEL="m") as here:
        calls = [busy(model, here)]
        for number, level in enumerate([2, 0, 1, 2, 1]):
            calls.append(Call(here, [[number, 0, 0]], priority=level))
            waiting(here, number + 1)
        model.go.set()
        for call in calls:
            call.right()
    assert model.runs == [[-1], [2], [4], [0], [1], [3]]


class Quick(Model):
    """Ten times ``x``, in no time."""

    inputs = (TensorSpec("x", "FP32", (-1, 3)),)
    outputs = (TensorSpec("y", "FP32", (-1, 3)),)
    max_batch_size = 8
    batching = BatchingSettings(8)

    def __init__(self) -> None:
        self.threads: set[str] = set()

    def infer(self, inputs: dict[str, Array]) -> dict[str, Array]:
        self.threads.add(threading.current_thread().name)
        return {"y": inputs["x"] * 10}


def test_a_quick_model_is_run_on_the_loop_and_each_caller_gets_its_own() -> None:
    model = Quick()
    with served(model, RELIGHT_MODEL="m") as here:
        for _ in range(40):
            for call in [Call(here, [[number, 0, 0]]) for number in range(4)]:
                call.right()
        metrics = here.engine.metrics.render().decode()
    assert "listening" in model.threads, "the loop's thread"
    assert "relight_batch_rows_sum 160.0" in metrics
    assert 'relight_requests_total{code="200"} 160.0' in metrics
