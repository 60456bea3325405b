"""Starting, staying alive and stopping, as real processes under every host."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from programs.hosting import HOSTS, Running, running, start, until

LONG = 4.5
"""Seconds of the request that is under way at SIGTERM; hypercorn cuts its handlers off after 3."""
QUICK = 0.5
"""Seconds in which liveness must answer here. The promise is 0.1; this machine is shared, and loads take 2 and more."""

OURS = ("replica", "func", "gunicorn")
"""Hosts that see hang-ups and stay open while they drain; gunicorn's own gthread worker, Flask's host, does neither."""


def liveness_seconds(program: Running) -> float:
    begun = time.monotonic()
    status, _, body = program.request("GET", "/health/liveness")
    assert (status, body) == (200, b"OK")
    return time.monotonic() - begun


class Call(threading.Thread):
    """A request in a thread of its own."""

    def __init__(self, program: Running, seconds: float) -> None:
        super().__init__()
        self._program = program
        self._seconds = seconds
        self.answer: object = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self._program.post("/", {"seconds": self._seconds})[::2]
        except OSError as error:
            self.answer = error


def metric(program: Running, line: str) -> bool:
    return line.encode() in program.request("GET", "/metrics")[2]


def in_flight(program: Running) -> bool:
    return metric(program, "relight_requests_in_flight 1.0")


@contextmanager
def all_hosts(program: str, folder: Path, hosts: tuple[str, ...] = HOSTS, **env: str) -> Iterator[dict[str, Running]]:
    """A program under several hosts at once: what takes its time is waited for once."""
    with ExitStack() as stack:
        started = {host: start(host, program, folder, **env) for host in hosts}
        for one in started.values():
            stack.callback(one.kill)
        for one in started.values():
            one.live()
        yield started


def test_sigterm_during_a_long_request(tmp_path: Path) -> None:
    with all_hosts("slow", tmp_path) as programs:
        for program in programs.values():
            program.ready()
        calls = {host: Call(program, LONG) for host, program in programs.items()}
        for program in programs.values():
            until(lambda program=program: in_flight(program), "the request is in flight")
        for program in programs.values():
            program.terminate()
        assert {host: program.process.wait(30) for host, program in programs.items()} == dict.fromkeys(HOSTS, 0)
        for call in calls.values():
            call.join()
        answer = (200, b'{"slept":4.5}')
        assert {host: call.answer for host, call in calls.items()} == dict.fromkeys(HOSTS, answer)
        assert [host for host, program in programs.items() if "Traceback" in program.log.read_text()] == []


def test_who_comes_while_it_drains_is_told_when_to_come_again(tmp_path: Path) -> None:
    with all_hosts("slow", tmp_path, OURS) as programs:
        calls = [Call(program.ready(), 4.0) for program in programs.values()]
        for program in programs.values():
            until(lambda program=program: in_flight(program), "the request is in flight")
            program.terminate()
        for program in programs.values():
            until(lambda program=program: program.status("/health/readiness") == 500, "unready")
            assert liveness_seconds(program) < QUICK
            status, headers, body = until(lambda program=program: refused(program), "refused")
            assert (status, headers["retry-after"], body) == (503, "1", b'{"error":"this process is stopping"}')
        for call, program in zip(calls, programs.values(), strict=True):
            call.join()
            assert call.answer == (200, b'{"slept":4.0}')
            assert program.process.wait(30) == 0


def refused(program: Running) -> tuple[int, dict[str, str], bytes] | None:
    answer = program.post("/", {"seconds": 0})
    return answer if answer[0] != 200 else None


def test_liveness_while_it_loads(tmp_path: Path) -> None:
    with all_hosts("slow", tmp_path, SLOW_LOAD="3") as programs:
        for program in programs.values():
            status, _, text = program.request("GET", "/health/readiness")
            assert (status, text) == (500, b"loading")
            assert liveness_seconds(program) < QUICK
            status, headers, body = program.post("/", {"seconds": 0})
            assert (status, headers["retry-after"], body) == (503, "1", b'{"error":"the function is still loading"}')
        for program in programs.values():
            assert program.ready().post("/", {"seconds": 0})[0] == 200


def test_liveness_while_it_computes(tmp_path: Path) -> None:
    with all_hosts("busy", tmp_path) as programs:
        for program in programs.values():
            call = Call(program.ready(), 1.0)
            until(lambda program=program: in_flight(program), "the request is in flight")
            assert liveness_seconds(program) < QUICK
            assert liveness_seconds(program) < QUICK
            assert call.is_alive(), "it computed all the while"
            call.join()
            assert isinstance(call.answer, tuple)
            assert call.answer[0] == 200


def test_stop_works_during_a_load(tmp_path: Path) -> None:
    with all_hosts("slow", tmp_path, SLOW_LOAD="60") as programs:
        for program in programs.values():
            program.terminate()
        assert {host: program.process.wait(20) for host, program in programs.items()} == dict.fromkeys(HOSTS, 0)


def test_a_load_that_raises(tmp_path: Path) -> None:
    with all_hosts("sick_load", tmp_path, ("func", "gunicorn", "flask")) as programs:
        sentence = b"load failed: ValueError: no weights in the folder"
        for program in programs.values():
            until(lambda program=program: b"failed" in program.request("GET", "/health/readiness")[2], "load failed")
            assert program.request("GET", "/health/readiness")[::2] == (500, sentence)
            for _ in range(3):
                status, headers, body = program.post("/", {})
                assert (status, body) == (503, b'{"error":"the function\'s ' + sentence + b'"}')
                assert "retry-after" not in headers, "a retry does not help"
            assert program.process.poll() is None, "it stays: a restart would only repeat it"
            log = program.log.read_text()
            assert log.count("load.failed") == 1
            assert log.count("Traceback") == 1
            assert program.stop() == 0


def test_an_authors_exception_stays_in_the_log(tmp_path: Path) -> None:
    with all_hosts("greet", tmp_path) as programs:
        for program in programs.values():
            status, _, body = program.ready().post("/", {"then": "raise"})
            assert status == 500
            assert b"4711" not in body
            assert "the secret is 4711" in program.log.read_text()


HUNG_UP = 'relight_requests_total{code="499"} 1.0'


def test_who_hangs_up_while_it_waits_is_not_run(tmp_path: Path) -> None:
    with all_hosts("busy", tmp_path, OURS) as programs:
        for program in programs.values():
            call = Call(program.ready(), 1.0)
            until(lambda program=program: in_flight(program), "the request is in flight")
            body = b'{"seconds": 60}'
            with socket.create_connection(("127.0.0.1", program.port)) as leaving:
                leaving.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                until(lambda program=program: metric(program, "relight_queue_length 1.0"), "it waits")
            until(lambda program=program: metric(program, HUNG_UP), "the hang-up is seen")
            call.join()
            # Were it run, this would wait for a minute.
            assert program.post("/", {"seconds": 0})[0] == 200


def test_a_body_over_the_limit(tmp_path: Path) -> None:
    want = (413, "application/json", b'{"error":"the body is over 1000 bytes"}')
    with all_hosts("greet", tmp_path, RELIGHT_MAX_BODY_BYTES="1000") as programs:
        for host, program in programs.items():
            program.ready()
            for body in (b'"%s"' % (b"x" * 2000), iter([b'"', b"x" * 2000, b'"'])):
                status, headers, answer = program.request("POST", "/", body)
                assert (status, headers["content-type"], answer) == want, host
            assert program.post("/", "x" * 900)[0] == 200


def test_flask_keeps_its_own_routes(tmp_path: Path) -> None:
    with running("flask", "greet", tmp_path) as program:
        assert program.request("GET", "/own")[::2] == (200, b"the service's own")


def test_gunicorn_ends_where_there_is_no_function(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="it ended with 4"), running("gunicorn", "not_a_function", tmp_path):
        pass
