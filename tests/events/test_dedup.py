"""One run per event: in the table of answers, and over HTTP in a served function."""

from __future__ import annotations

import asyncio
import http.client
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import servers
from aiohttp import web
from events.rig import Machine, Received, Subscriber, run
from runtime.serving import Served, served

from relight.base.errors import BadInput, NotReady
from relight.runtime.dedup import Dedup, key_of
from relight.runtime.shareddedup import Answers, SharedDedup
from relight.runtime.step import Step
from relight.wire import cloudevents
from relight.wire.cloudevents import Event
from relight.wire.http import Headers, Response

KEY = ("/s", "1", "digest")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Runs:
    """Hands out the futures of runs, for the test to end."""

    def __init__(self) -> None:
        self.futures: list[Future[Response]] = []

    def __call__(self) -> Future[Response]:
        self.futures.append(Future())
        return self.futures[-1]

    def end(self, at: int, answer: Response) -> None:
        assert self.futures[at].set_running_or_notify_cancel()
        self.futures[at].set_result(answer)


def answer(body: bytes = b"x", status: int = 200) -> Response:
    return Response(status, (), body)


def test_the_answer_is_given_again_until_its_time_is_up() -> None:
    clock, runs = Clock(), Runs()
    dedup = Dedup(10.0, now=clock)
    first = dedup.submit(KEY, runs)
    runs.end(0, answer(b"a"))
    assert first.result(0) is dedup.submit(KEY, runs).result(0)
    clock.now = 9.9
    assert dedup.submit(KEY, runs).result(0).body == b"a"
    clock.now = 10.0
    assert not dedup.submit(KEY, runs).done()
    assert len(runs.futures) == 2


def test_duplicates_wait_for_the_run_that_goes_on() -> None:
    runs, replays = Runs(), []
    dedup = Dedup(10.0, on_replay=lambda: replays.append(1))
    callers = [dedup.submit(KEY, runs) for _ in range(3)]
    assert not any(caller.done() for caller in callers)
    runs.end(0, answer(b"a"))
    assert [caller.result(0).body for caller in callers] == [b"a"] * 3
    assert (len(runs.futures), len(replays)) == (1, 2)


def test_a_failure_reaches_all_who_wait_and_is_not_kept() -> None:
    runs = Runs()
    dedup = Dedup(10.0)
    callers = [dedup.submit(KEY, runs) for _ in range(2)]
    runs.futures[0].set_exception(BadInput("no"))
    for caller in callers:
        with pytest.raises(BadInput):
            caller.result(0)
    dedup.submit(KEY, runs)
    assert len(runs.futures) == 2
    runs.end(1, answer(status=500))
    dedup.submit(KEY, runs)
    assert len(runs.futures) == 3


def test_a_caller_who_hangs_up_ends_only_what_nobody_waits_for() -> None:
    runs = Runs()
    dedup = Dedup(10.0)
    first, second = dedup.submit(KEY, runs), dedup.submit(KEY, runs)
    first.cancel()
    assert not runs.futures[0].cancelled()
    second.cancel()
    assert runs.futures[0].cancelled()
    assert not dedup.submit(KEY, runs).done()  # begun anew


def test_a_run_that_has_begun_is_kept_though_its_caller_is_gone() -> None:
    runs = Runs()
    dedup = Dedup(10.0)
    gone = dedup.submit(KEY, runs)
    assert runs.futures[0].set_running_or_notify_cancel()
    gone.cancel()
    late = dedup.submit(KEY, runs)
    runs.futures[0].set_result(answer(b"a"))
    assert late.result(0).body == b"a"
    assert dedup.submit(KEY, runs).result(0).body == b"a"


def test_a_run_that_the_pool_refuses_or_drops_is_told() -> None:
    runs = Runs()
    dedup = Dedup(10.0)

    def full() -> Future[Response]:
        raise NotReady("stopping")

    with pytest.raises(NotReady):
        dedup.submit(KEY, full)
    caller = dedup.submit(KEY, runs)
    runs.futures[0].cancel()
    with pytest.raises(NotReady):
        caller.result(0)


@pytest.mark.parametrize(("limits", "kept"), [({"answers": 3}, 3), ({"answer_bytes": 5000}, 3)], ids=str)
def test_answers_are_bounded_and_the_oldest_go(limits: dict[str, int], kept: int) -> None:
    dedup, runs = Dedup(10.0, **limits), Runs()
    for n in range(5):
        dedup.submit(("/s", str(n), "digest"), runs)
        runs.end(n, answer(b"x" * 1000))
    assert len(dedup) == kept
    assert dedup.submit(("/s", "4", "digest"), runs).done()
    assert not dedup.submit(("/s", "0", "digest"), runs).done()
    dedup.submit(("/s", "big", "digest"), runs)
    runs.end(-1, answer(b"x" * 40_000_000))
    assert len(dedup) <= kept


def test_other_data_under_the_same_names_is_no_duplicate() -> None:
    event = Event("1", "/s", "t", {}, b"a")
    assert key_of(event) == key_of(event.replace(subject="x", knativearrivaltime="2020-01-01T00:00:00Z"))
    assert len({key_of(event), key_of(event.replace(data=b"b")), key_of(event.replace(type="u"))}) == 3


class Count(Step):
    """Counts its runs; ``wait`` holds one until the test opens the gate."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.begun = threading.Semaphore(0)
        self.gate = threading.Event()

    def run(self, data: Any, event: Event | None) -> Any:
        self.runs.append(event.id if event else "")
        self.begun.release()
        if data.get("wait"):
            assert self.gate.wait(10)
        if data.get("fail") and len(self.runs) < 2:
            raise ValueError("not yet")
        return {"run": len(self.runs)}


def send(here: Served, event: Event, **headers: str) -> tuple[int, Event | None]:
    fields, body = cloudevents.encode_binary(event)
    connection = http.client.HTTPConnection("127.0.0.1", here.port, timeout=10)
    try:
        connection.request("POST", "/", body, dict(fields) | headers)
        response = connection.getresponse()
        got = response.read()
    finally:
        connection.close()
    told = Headers(response.getheaders())
    return response.status, cloudevents.decode(told, got) if response.status == 200 else None


def test_over_http_an_event_is_run_once_and_its_reply_stays_the_same() -> None:
    function = Count()
    with served(function, K_SERVICE="count") as here:
        event = Event.of("t", "/s", {"a": 1}, id="e1")
        first = send(here, event)
        assert send(here, event) == first
        assert function.runs == ["e1"]
        reply = first[1]
        assert reply is not None
        assert (reply.get("causationid"), reply.json()) == ("e1", {"run": 1})
        other = send(here, Event.of("t", "/s", {"a": 1}, id="e2"))[1]
        assert other is not None
        assert other.id != reply.id
        metrics = here.engine.metrics.render().decode()
        assert "relight_event_answers_replayed_total 1.0" in metrics
    # Another process of the same function makes a reply of the same id: it can be told to be the same.
    with served(Count(), K_SERVICE="count") as here:
        again = send(here, event)[1]
        assert again is not None
        assert again.id == reply.id


def test_a_trigger_may_ask_for_a_run_each_time() -> None:
    function = Count()
    with served(function) as here:
        event = Event.of("t", "/s", {"a": 1}, id="e1")
        replies = [send(here, event, **{"relight-dedup": "off"})[1] for _ in range(2)]
        assert function.runs == ["e1", "e1"]
        assert len({one.id for one in replies if one}) == 2


def test_duplicates_at_the_same_time_run_once() -> None:
    function = Count()
    with served(function) as here, ThreadPoolExecutor(3) as pool:
        event = Event.of("t", "/s", {"wait": True}, id="e1")
        answers = [pool.submit(send, here, event) for _ in range(3)]
        assert function.begun.acquire(timeout=10)
        function.gate.set()
        ids = {reply.id for _, reply in (one.result(10) for one in answers) if reply}
        assert (len(ids), function.runs) == (1, ["e1"])


def test_a_failed_run_is_tried_again() -> None:
    function = Count()
    with served(function) as here:
        event = Event.of("t", "/s", {"fail": True}, id="e1")
        assert send(here, event)[0] == 500
        assert send(here, event)[0] == 200
        assert function.runs == ["e1", "e1"]


def test_plain_requests_are_never_taken_for_duplicates() -> None:
    function = Count()
    with served(function) as here:
        for _ in range(2):
            connection = http.client.HTTPConnection("127.0.0.1", here.port, timeout=10)
            connection.request("POST", "/", b"{}", {"content-type": "application/json"})
            assert connection.getresponse().status == 200
            connection.close()
        assert len(function.runs) == 2


def test_a_handler_slower_than_the_delivery_timeout_runs_once(tmp_path: Any) -> None:
    """The broker loses patience and tries again: the second attempt joins the run of the first."""
    function = Count()

    async def story(here: Served) -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            attempts = 0

            def follow(got: Received) -> web.Response:
                assert (got.event.type, got.event.get("causationid")) == ("t.response", "e1")
                return web.Response(status=202)

            subscriber.answers["/next"] = follow
            await machine.trigger(
                "slow",
                "t",
                f"http://127.0.0.1:{here.port}/",
                delivery={"timeout": "PT0.2S", "retry": 50, "backoffDelay": "PT0.02S", "backoffPolicy": "linear"},
            )
            await machine.trigger("next", "t.response", f"{subscriber.url}/next")
            await machine.post(Event.of("t", "/s", {"wait": True}, id="e1"))
            while attempts < 2:
                pending = await machine.eventing.log.pending()
                attempts = max((one.attempt for one in pending), default=attempts)
                await asyncio.sleep(0.01)
            function.gate.set()
            await subscriber.until(1, "/next")
            await machine.settled()
            assert len(subscriber.at("/next")) == 1

    with served(function) as here:
        run(story(here))
        assert function.runs == ["e1"]


# Several replicas.


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = servers.redis_server(tmp_path_factory.mktemp("redis"))
    server.start(servers.pings)
    yield f"redis://127.0.0.1:{server.port}"
    server.kill()


def replica(url: str, function: str = "/default/f", lease: float = 15.0) -> SharedDedup:
    return SharedDedup(Dedup(100.0), Answers(url, function, 100.0, lease=lease))


@contextmanager
def replicas(*ones: SharedDedup) -> Iterator[None]:
    try:
        yield
    finally:
        for one in ones:
            one.stop(5.0)


def began(runs: Runs, count: int) -> None:
    """Wait until so many runs have begun."""
    deadline = time.monotonic() + 10.0
    while len(runs.futures) < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_another_replica_gives_the_answer_again(redis_url: str) -> None:
    one, two = replica(redis_url), replica(redis_url)
    other = replica(redis_url, "/default/g")
    runs, never = Runs(), Runs()
    with replicas(one, two, other):
        first = one.submit(("/s", "shared", "d"), runs)
        began(runs, 1)
        # While the first replica works the second one waits, and does not run it.
        meanwhile = two.submit(("/s", "shared", "d"), never)
        runs.end(0, Response(200, (("ce-id", "r"),), b"a"))
        assert first.result(10) == meanwhile.result(10) == Response(200, (("ce-id", "r"),), b"a")
        assert two.submit(("/s", "shared", "d"), never).result(10).body == b"a"
        assert never.futures == []
        # Another function's answers are another's.
        third = other.submit(("/s", "shared", "d"), runs)
        began(runs, 2)
        runs.end(1, answer(b"b"))
        assert third.result(10).body == b"b"


def test_a_failure_is_not_shared(redis_url: str) -> None:
    one, two = replica(redis_url), replica(redis_url)
    runs = Runs()
    with replicas(one, two):
        first = one.submit(("/s", "failing", "d"), runs)
        began(runs, 1)
        waiting = two.submit(("/s", "failing", "d"), runs)
        runs.futures[0].set_running_or_notify_cancel()
        runs.futures[0].set_exception(BadInput("no"))
        with pytest.raises(BadInput):
            first.result(10)
        began(runs, 2)
        runs.end(1, answer(b"again"))
        assert waiting.result(10).body == b"again"


def test_an_event_of_a_replica_that_was_killed_is_run_again(redis_url: str) -> None:
    """Its claim is renewed by nobody, and runs out."""
    killed = Answers(redis_url, "/default/f", 100.0, lease=0.3)
    assert isinstance(killed.claim(("/s", "killed", "d")), bytes)
    two, runs = replica(redis_url), Runs()
    with replicas(two):
        waiting = two.submit(("/s", "killed", "d"), runs)
        began(runs, 1)
        runs.end(0, answer(b"x"))
        assert waiting.result(10).body == b"x"
    killed.close()


def test_without_redis_each_replica_knows_its_own(redis_url: str) -> None:
    one, runs = replica(f"redis://127.0.0.1:{servers.free_port()}"), Runs()
    with replicas(one):
        first = one.submit(KEY, runs)
        began(runs, 1)
        runs.end(0, answer(b"a"))
        assert first.result(10).body == b"a"
        assert one.submit(KEY, runs).result(10).body == b"a"
        assert len(runs.futures) == 1


class Counting(Step):
    runs = 0

    def run(self, data: Any, event: Event | None) -> Any:
        type(self).runs += 1
        return {"n": self.runs}


def test_two_replicas_of_a_function_run_an_event_once(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are started: by the environment, over HTTP."""
    headers, body = cloudevents.encode_binary(Event.of("t", "/s", {"a": 1}, id="over-http"))
    environ = {"RELIGHT_DEDUP_REDIS": redis_url, "K_SERVICE": "counting"}
    bodies = []
    for _ in range(2):
        with served(Counting(), **environ) as one:
            connection = http.client.HTTPConnection("127.0.0.1", one.port)
            connection.request("POST", "/", body, dict(headers))
            bodies.append(connection.getresponse().read())
            connection.close()
    assert bodies[0] == bodies[1]
    assert Counting.runs == 1
