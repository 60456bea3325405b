"""One run per event: in the table of answers, and over HTTP in a served function."""

from __future__ import annotations

import asyncio
import http.client
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from aiohttp import web
from events.rig import Machine, Received, Subscriber, run
from runtime.serving import Served, served

from relight.base.errors import BadInput, NotReady
from relight.runtime.dedup import Dedup, key_of
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
