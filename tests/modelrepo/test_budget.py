"""Many models in one process: measured, within a budget, and no request fails while its model is swapped in."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from modelrepo.conftest import Door
from modelrepo.load import calling
from modelrepo.tiny import put, scaling
from programs.hosting import until

from relight.runtime import memory
from relight.runtime.batcher import Job
from relight.store.repository import Repository

Open = Callable[..., AbstractContextManager[Door]]
WIDTH = 1024
WEIGHTS = 4 * WIDTH**2
"""Bytes of weights of a model of that width."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests: what has the same content is measured once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def push(repository: Path, tmp_path: Path) -> Callable[..., int]:
    """``push(name, factor)``: the next version of a model that multiplies by ``factor``."""

    def push(name: str, factor: float, width: int = WIDTH) -> int:
        model = tmp_path / "model.onnx"
        model.write_bytes(scaling(factor, width))
        return Repository.open(repository.as_uri()).push(model, name)

    return push


@pytest.fixture
def sizes(push: Callable[..., int], door: Open, cache: Path) -> dict[str, int]:
    """Models a, b and c, which multiply by 1, 2 and 3, and the bytes of each, as they were measured."""
    for at, name in enumerate("abc"):
        push(name, at + 1)
    with door(RELIGHT_MEMORY_BUDGET="10Gi", RELIGHT_CACHE=str(cache)) as open_door:
        for name in "abc":
            assert open_door.infer(name, WIDTH)[0] == 200
        return bytes_of(open_door)


def bytes_of(door: Door) -> dict[str, int]:
    _, entries = door.ask("POST", "/v2/repository/index", {"ready": True})
    return {entry["name"]: entry["parameters"]["memory_bytes"] for entry in entries}


def test_models_give_way_within_the_budget(sizes: dict[str, int], cache: Path, door: Open) -> None:
    assert min(sizes.values()) >= WEIGHTS, "at least the weights"
    assert max(sizes.values()) < 4 * WEIGHTS + 20 * 2**20
    assert len(list((cache / "v1" / "measured").glob("*.json"))) == 3
    # All but one byte of what the three take together.
    budget = sum(sizes.values()) - 1
    with door(RELIGHT_MEMORY_BUDGET=str(budget), RELIGHT_CACHE=str(cache)) as open_door:
        assert open_door.infer("a", WIDTH) == (200, (1.0, "1"))
        assert open_door.infer("b", WIDTH) == (200, (2.0, "1"))
        assert open_door.infer("a", WIDTH) == (200, (1.0, "1"))
        assert open_door.infer("c", WIDTH) == (200, (3.0, "1"))
        states = {name: state for (name, _), (state, _) in open_door.index().items()}
        assert states == {"a": "READY", "b": "UNAVAILABLE", "c": "READY"}, "b was used longest ago"
        assert open_door.index()["b", "1"][1] == (
            f"evicted for c/1, which needs {sizes['c']} bytes: {sizes['a'] + sizes['b']} of a budget of {budget}"
            " were in use"
        )
        assert open_door.metric("relight_model_budget_bytes") == budget
        assert open_door.metric("relight_model_memory_bytes") == sizes["a"] + sizes["c"]
        assert open_door.metric("relight_model_evictions_total") == 1
        (entry,) = [e for e in open_door.ask("POST", "/v2/repository/index")[1] if e["name"] == "b"]
        assert entry["parameters"] == {"memory_budget_bytes": budget, "evictions": 1}
        assert open_door.infer("b", WIDTH) == (200, (2.0, "1"))


def test_a_model_over_the_budget_is_refused_with_the_numbers(sizes: dict[str, int], cache: Path, door: Open) -> None:
    with door(RELIGHT_MEMORY_BUDGET="1Mi", RELIGHT_CACHE=str(cache)) as open_door:
        for _ in range(2):
            status, error = open_door.infer("a", WIDTH)
            assert status == 507
            assert f"no room for model a/1: it needs {sizes['a']} bytes" in error
            assert "the budget is 1048576 bytes" in error
            assert "and 0 bytes (0 B) are in use" in error
        assert open_door.index()["a", "1"] == ("UNAVAILABLE", error)


def test_no_request_fails_while_models_are_swapped(sizes: dict[str, int], cache: Path, door: Open) -> None:
    # Room for any one, and three models that are asked for all the time.
    with door(RELIGHT_MEMORY_BUDGET=str(max(sizes.values())), RELIGHT_CACHE=str(cache)) as open_door:
        with calling(open_door, "a", "b", "c", "a", width=WIDTH) as callers:
            for value in (1.0, 2.0, 3.0) * 3:
                callers.wait_for(2, (value, "1"))
        assert callers.failed == []
        assert open_door.metric("relight_model_evictions_total") >= 3
        assert open_door.metric("relight_models_loaded") == 1
        assert all(copy.users == 0 for copy in open_door.residents.loads.copies.all()), "all that was held is back"


def test_memory_goes_back_when_a_model_goes(push: Callable[..., int], door: Open) -> None:
    push("big", 2, 4 * WIDTH)
    here = os.getpid()
    with door() as open_door:
        # The first one brings the library with it, and that stays.
        assert open_door.infer("big", 4 * WIDTH)[0] == 200
        for _ in range(2):
            assert open_door.ask("POST", "/v2/repository/models/big/unload")[0] == 200
            without = memory.resident(here)
            assert open_door.ask("POST", "/v2/repository/models/big/load")[0] == 200
            assert open_door.infer("big", 4 * WIDTH)[0] == 200
            assert memory.resident(here) - without > 0.8 * 16 * WEIGHTS


def test_a_model_in_use_is_waited_for(sizes: dict[str, int], cache: Path, door: Open) -> None:
    with door(RELIGHT_MEMORY_BUDGET=str(max(sizes.values())), RELIGHT_CACHE=str(cache)) as open_door:
        assert open_door.infer("a", WIDTH)[0] == 200
        answers: list[object] = []
        with open_door.residents.lease("a", None, 10) as served:
            asked = threading.Thread(target=lambda: answers.append(open_door.infer("b", WIDTH)))
            asked.start()
            until(lambda: open_door.index()["a", "1"][0] == "UNLOADING", "a is to go", 10)
            assert answers == []
            x = np.ones((1, WIDTH), np.float32)
            assert served.submit(Job({"x": x})).result(10).outputs["y"][0, 0] == 1.0, "it still works"
        asked.join(30)
        assert answers == [(200, (2.0, "1"))]
        assert open_door.index()["a", "1"][0] == "UNAVAILABLE"


def test_a_wait_for_room_ends_and_what_was_there_stays(sizes: dict[str, int], cache: Path, door: Open) -> None:
    budget = str(max(sizes.values()))
    with door(RELIGHT_MEMORY_BUDGET=budget, RELIGHT_CACHE=str(cache), RELIGHT_LOAD_WAIT="0.3") as open_door:
        assert open_door.infer("a", WIDTH)[0] == 200
        with open_door.residents.lease("a", None, 10):
            status, error = open_door.infer("b", WIDTH)
            assert (status, "within 0.3 s" in error or "did not end in time" in error) == (504, True), error
            until(lambda: open_door.index()["a", "1"][0] == "READY", "a stays", 10)
            assert open_door.infer("a", WIDTH) == (200, (1.0, "1"))
        until(lambda: open_door.infer("b", WIDTH)[0] == 200, "once it is idle it gives way", 10)


def test_a_new_version_needs_room_beside_the_old_one(
    sizes: dict[str, int], push: Callable[..., int], cache: Path, door: Open
) -> None:
    push("m", 1)
    with door(RELIGHT_MEMORY_BUDGET=str(max(sizes.values())), RELIGHT_CACHE=str(cache)) as open_door:
        assert open_door.infer("m", WIDTH)[0] == 200
        assert push("m", 2) == 2
        status, answer = open_door.ask("POST", "/v2/repository/models/m/load")
        assert status == 507
        assert "m/1, which serves until the new version is ready" in answer["error"]
        assert open_door.infer("m", WIDTH) == (200, (1.0, "1"))
        assert open_door.ask("POST", "/v2/repository/models/m/unload")[0] == 200
        assert open_door.ask("POST", "/v2/repository/models/m/load")[0] == 200
        assert open_door.infer("m", WIDTH) == (200, (2.0, "2"))


def test_requests_that_wait_are_bounded_in_number(repository: Path, door: Open) -> None:
    put(repository, "a", 1, scaling(1))
    with door(RELIGHT_QUEUE_LIMIT="2") as open_door:
        # The one thread that loads is held up.
        held = threading.Event()
        open_door.residents.loads._loader.submit(lambda: held.wait(20))
        answers: list[int] = []
        threads = [threading.Thread(target=lambda: answers.append(open_door.infer("a")[0])) for _ in range(3)]
        for thread in threads:
            thread.start()
        until(lambda: answers == [503], "the third is refused", 10)
        held.set()
        for thread in threads:
            thread.join(20)
        assert sorted(answers) == [200, 200, 503]


def test_who_hangs_up_leaves_nothing_behind(repository: Path, door: Open) -> None:
    put(repository, "a", 1, scaling(1))
    with door() as open_door:
        held = threading.Event()
        open_door.residents.loads._loader.submit(lambda: held.wait(20))
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1] * 4}]}
        data = json.dumps(body).encode()
        with open_door.here.connect() as sock:
            head = f"POST /v2/models/a/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
            sock.sendall(head.encode() + data)
            until(lambda: open_door.residents.loads.room.waiting == 1, "it waits", 10)
        until(lambda: open_door.metric('relight_requests_total{code="499"}') == 1, "it has hung up", 10)
        held.set()
        assert open_door.infer("a") == (200, (1.0, "1"))
        assert [copy.users for copy in open_door.residents.loads.copies.all()] == [0]


SICK = {
    "a file that is no model": (b"junk", "cannot be loaded: ONNX Runtime cannot read"),
    "a child that dies": (None, "ended by signal 9"),
}


@pytest.mark.parametrize(("model", "reason"), SICK.values(), ids=SICK.keys())
def test_what_cannot_be_measured_is_not_loaded(
    model: bytes | None, reason: str, repository: Path, tmp_path: Path, door: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(repository, "m", 1, scaling(1) if model is None else model)
    if model is None:
        # Loading it takes the process down, as one that is out of memory is.
        (tmp_path / "sitecustomize.py").write_text(
            "import sys, os, signal\n"
            "if 'relight.runtime.measuring' in ' '.join(sys.orig_argv): os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
        monkeypatch.setenv("PYTHONPATH", path)
    with door(RELIGHT_MEMORY_BUDGET="1Gi") as open_door:
        status, error = open_door.infer("m")
        assert (status, reason in error) == (503, True), error
        assert list((tmp_path / "cache" / "v1").glob("measured/*")) == []
