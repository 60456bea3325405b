"""The front door before models that have a function of their own: it answers while that one wakes, then passes on."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from modelrepo.conftest import Door
from modelrepo.tiny import put, scaling

from relight.base.errors import BadInput
from relight.runtime.context import FunctionSettings

Open = Callable[..., AbstractContextManager[Door]]
HERE, THERE = (2.0, "1"), (20.0, "7")


@dataclass
class Own:
    """A model's own function behind an activator: questions wait until it is awake. What it answers is its own."""

    url: str = ""
    awake: threading.Event = field(default_factory=threading.Event)
    asked: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    told: threading.Event = field(default_factory=threading.Event)
    """Set when a question has been answered."""
    status: int = 200


@pytest.fixture
def own() -> Iterator[Own]:
    one = Own()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            one.asked.append((self.command, self.path, headers, body))
            one.awake.wait(20)
            output = {"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [20.0] * 4}
            text = json.dumps({"model_version": "7", "outputs": [output], "error": "from there"}).encode()
            self.send_response(one.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
            one.told.set()

        do_GET = do_POST = answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    one.url = f"http://127.0.0.1:{server.server_port}/default/double"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield one
    one.awake.set()
    server.shutdown()
    server.server_close()
    thread.join(10)


@pytest.fixture
def models(repository: Path) -> None:
    put(repository, "double", 1, scaling(2))
    put(repository, "triple", 1, scaling(3))


def until_it_answers(door: Door, own: Own) -> None:
    """Wake the function, and wait until the front door has heard of it."""
    own.awake.set()
    assert door.infer("double")[0] == 200
    assert own.told.wait(20)
    for _ in range(1000):
        if door.infer("double") == (200, THERE):
            return
    raise AssertionError("its answer was not heard")


def test_who_answers_while_a_model_wakes(own: Own, models: None, door: Open) -> None:
    with door(RELIGHT_OWN_FUNCTIONS=f"double={own.url}") as open_door:
        assert [open_door.infer("double") for _ in range(3)] == [(200, HERE)] * 3
        assert [one[:2] for one in own.asked] == [("GET", "/default/double/v2/models/double/ready")], "woken once"
        assert open_door.infer("triple") == (200, (3.0, "1"))
        until_it_answers(open_door, own)
        assert open_door.infer("double/versions/1") == (200, HERE), "a version is what this repository has"
        assert open_door.infer("triple") == (200, (3.0, "1"))
        text = open_door.ask("GET", "/metrics")[1]
        assert 'relight_front_door_answers_total{by="front door",model="double"}' in text
        assert 'relight_front_door_answers_total{by="own function",model="double"}' in text


def test_nothing_is_passed_on_where_nobody_asked_for_it(own: Own, models: None, door: Open) -> None:
    with door() as open_door:
        assert open_door.infer("double") == (200, HERE)
    assert own.asked == []


def test_what_is_passed_on_is_what_came(own: Own, models: None, door: Open) -> None:
    with door(RELIGHT_OWN_FUNCTIONS=f"double={own.url}") as open_door:
        until_it_answers(open_door, own)
        own.asked.clear()
        own.status = 400
        assert open_door.ask("POST", "/v2/models/double/infer?a=b%20c", {"inputs": "none"}) == (
            400,
            {"model_version": "7", "outputs": own_outputs(), "error": "from there"},
        )
        ((method, path, headers, body),) = own.asked
        assert (method, path) == ("POST", "/default/double/v2/models/double/infer?a=b%20c")
        assert json.loads(body) == {"inputs": "none"}
        assert headers["host"] == own.url.split("/")[2]


def own_outputs() -> list[dict[str, object]]:
    return [{"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [20.0] * 4}]


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_function_that_cannot_answer_is_answered_for(own: Own, models: None, door: Open, status: int) -> None:
    with door(RELIGHT_OWN_FUNCTIONS=f"double={own.url}") as open_door:
        until_it_answers(open_door, own)
        own.status = status
        assert open_door.infer("double") == (200, HERE)


def test_a_function_that_is_gone_is_answered_for(models: None, door: Open) -> None:
    with door(RELIGHT_OWN_FUNCTIONS="double=http://127.0.0.1:9") as open_door:
        assert [open_door.infer("double") for _ in range(2)] == [(200, HERE)] * 2


def test_a_function_that_was_not_asked_for_a_while_is_woken_again(own: Own, models: None, door: Open) -> None:
    with door(RELIGHT_OWN_FUNCTIONS=f"double={own.url}", RELIGHT_FORWARD_SECONDS="0") as open_door:
        own.awake.set()
        for _ in range(3):
            own.told.clear()
            for _ in range(100):  # while the last question's answer is still being read, none is sent
                assert open_door.infer("double") == (200, HERE)
                if own.told.wait(0.2):
                    break
            assert own.told.is_set()
    assert {one[0] for one in own.asked} == {"GET"}


@pytest.mark.parametrize("text", ["double", "double=ftp://x", "=http://x", "double=http://"])
def test_settings_that_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="RELIGHT_OWN_FUNCTIONS: expected MODEL=URL"):
        FunctionSettings.from_environ({"RELIGHT_OWN_FUNCTIONS": text})
