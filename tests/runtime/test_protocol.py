"""HTTP/1.1 as our own protocol takes it: what it refuses, what it bounds, what it does when a client goes away."""

from __future__ import annotations

import asyncio
import http.client
import re
import select
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from programs.hosting import until
from runtime.serving import Served, drained, served

from relight.runtime.hosts.limits import Limits
from relight.runtime.hosts.wire import render, split_target
from relight.sdk import Event, Step
from relight.wire.http import Response

LIMITS = Limits(head=2000, body=100_000, pipelined=4)
OK = b'{"said":'


class Say(Step):
    """Says what it heard; ``wait`` holds it until the test lets go."""

    concurrency = 1

    def load(self) -> None:
        self.heard: list[Any] = []
        self.entered = threading.Semaphore(0)
        self.leave = threading.Event()

    def run(self, data: Any, event: Event | None) -> Any:
        self.heard.append(data)
        if data == "wait":
            self.entered.release()
            assert self.leave.wait(10)
        if isinstance(data, dict) and "size" in data:
            return "x" * data["size"]
        return {"said": data}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(Say(), LIMITS) as here:
        yield here


@pytest.fixture
def say() -> Iterator[tuple[Say, Served]]:
    function = Say()
    with served(function, LIMITS) as here:
        yield function, here
        function.leave.set()


def post(body: bytes, *headers: bytes, version: bytes = b"1.1") -> bytes:
    lines = [b"POST / HTTP/" + version, b"Host: a", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def statuses(answers: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answers)]


CLOSE = b"Connection: close"

POST = b"POST / HTTP/1.1\r\nHost: a\r\n"
REFUSED = {
    "both lengths": POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both, the other way": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "a list of lengths": POST + b"Content-Length: 3, 3\r\n\r\nabc",
    "a signed length": POST + b"Content-Length: +3\r\n\r\nabc",
    "a length over all numbers": POST + b"Content-Length: 99999999999999999999999\r\n\r\na",
    "another coding": POST + b"Transfer-Encoding: gzip\r\n\r\nabc",
    "a coding more": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked, nearly": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "chunked in HTTP/1.0": b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a bad chunk size": POST + b"Transfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n",
    "a chunk size that overflows": POST + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\na",
    "a folded header": b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
    "bare line feeds": b"GET / HTTP/1.1\nHost: a\n\n",
    "no Host": b"GET /v2 HTTP/1.1\r\n\r\n",
    "two Hosts": b"GET /v2 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "HTTP/2 in clear text": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "another version": b"GET /v2 HTTP/2.0\r\nHost: a\r\n\r\n",
    "another protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a method that is none": b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a tunnel": b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
    "a target that is none": b"GET nothing HTTP/1.1\r\nHost: a\r\n\r\n",
    "an upgrade in chunks": POST + b"Connection: upgrade\r\nUpgrade: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a zero in the path": b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n",
    "a control character in a header": b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: a\x01b\r\n\r\n",
}
BEHIND = b"GET /v2 HTTP/1.1\r\nHost: behind\r\n\r\n"


@pytest.mark.parametrize("request_bytes", REFUSED.values(), ids=REFUSED.keys())
def test_what_two_servers_could_read_in_two_ways_is_refused(server: Served, request_bytes: bytes) -> None:
    answer = server.exchange(request_bytes + BEHIND)
    assert statuses(answer) == [400], "one answer, and nothing behind it is trusted"
    assert b"\r\nconnection: close\r\n" in answer
    assert b'{"error":"' in answer


TOO_LARGE = {
    "one long header": (431, b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 3000 + b"\r\n\r\n"),
    "many headers": (431, b"GET /v2 HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 1000 + b"\r\n"),
    "a long path": (431, b"GET /" + b"x" * 3000 + b" HTTP/1.1\r\nHost: a\r\n\r\n"),
    "a body, by its length": (413, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100001\r\n\r\n"),
    "a body behind an upgrade": (413, POST + b"Connection: upgrade\r\nUpgrade: x\r\nContent-Length: 100001\r\n\r\n"),
    "a body, in chunks": (
        413,
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"4e20\r\n%s\r\n" % (b"x" * 20000) * 6,
    ),
}


@pytest.mark.parametrize(("status", "data"), TOO_LARGE.values(), ids=TOO_LARGE.keys())
def test_limits(server: Served, status: int, data: bytes) -> None:
    assert statuses(server.exchange(data)) == [status]


def test_headers_that_pile_up_without_an_end(server: Served) -> None:
    with server.connect() as sock:
        sock.sendall(b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: ")
        while not select.select([sock], [], [], 0.01)[0]:
            sock.sendall(b"x" * 500)
        assert statuses(drained(sock)) == [431]


def test_who_sends_on_after_a_refusal_still_reads_it(server: Served) -> None:
    with server.connect() as sock:
        sock.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\n\r\n")
        for _ in range(40):
            sock.sendall(b"x" * 100_000)
        assert statuses(drained(sock)) == [413]


def test_trailers_that_pile_up_without_an_end(server: Served) -> None:
    with server.connect() as sock:
        sock.sendall(POST + b'Transfer-Encoding: chunked\r\n\r\n3\r\n"a"\r\n0\r\nX: ')
        while not select.select([sock], [], [], 0.01)[0]:
            sock.sendall(b"x" * 500)
        assert statuses(drained(sock)) == [431]


def test_small_chunks_are_no_overhead(server: Served) -> None:
    pieces = b"".join(b"1\r\n%c\r\n" % byte for byte in b'"' + b"x" * 5000 + b'"')
    with server.connect() as sock:
        sock.sendall(POST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
        for at in range(0, len(pieces), 997):
            sock.sendall(pieces[at : at + 997])
        sock.sendall(b"0\r\n\r\n")
        assert len(drained(sock).split(b"\r\n\r\n", 1)[1]) == len('{"said":""}') + 5000


def test_nothing_is_answered_behind_a_last_request(say: tuple[Say, Served]) -> None:
    function, here = say
    with here.connect() as sock:
        sock.sendall(post(b'"wait"', CLOSE) + post(b'"behind"'))
        assert function.entered.acquire(timeout=5)
        function.leave.set()
        assert statuses(drained(sock)) == [200]
    assert function.heard == ["wait"]


def test_expectations(server: Served) -> None:
    with server.connect() as sock:
        sock.sendall(
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
        )
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b'"a"')
        assert drained(sock).endswith(b'{"said":"a"}')
    assert statuses(server.exchange(post(b'"a"', b"Expect: tea"))) == [417]


def test_a_body_over_the_limit_is_not_asked_for(server: Served) -> None:
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100001\r\nExpect: 100-continue\r\n\r\n"
    assert statuses(server.exchange(head)) == [413]


KEPT = {
    "1.1": (b"1.1", [], True),
    "1.1 close": (b"1.1", [CLOSE], False),
    "1.0": (b"1.0", [], False),
    "1.0 keep-alive": (b"1.0", [b"Connection: keep-alive"], True),
}


@pytest.mark.parametrize(("version", "headers", "kept"), KEPT.values(), ids=KEPT.keys())
def test_keeping_the_connection(server: Served, version: bytes, headers: list[bytes], kept: bool) -> None:
    first = post(b'"1"', *headers, version=version)
    with server.connect() as sock:
        sock.sendall(first)
        answer = sock.recv(1000)
        assert answer.endswith(b'{"said":"1"}')
        assert (b"connection: close" not in answer) == kept
        sock.settimeout(5)
        if kept:
            sock.sendall(post(b'"2"', CLOSE))
            assert drained(sock).endswith(b'{"said":"2"}')
        else:
            assert sock.recv(1000) == b""


def test_what_one_version_may_leave_out_the_next_request_may_not(server: Served) -> None:
    """The same headers as in the request before are not checked anew, unless it was of another version."""
    without_host = b"POST / HTTP/%s\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}"
    assert statuses(server.exchange(without_host % b"1.0" + without_host % b"1.1")) == [200, 400]


def test_an_offer_to_upgrade_is_ignored(server: Served) -> None:
    offer = [b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__"]
    answer = server.exchange(post(b'"a"', *offer) + post(b'"b"', CLOSE))
    assert statuses(answer) == [200, 200]
    assert answer.count(OK) == 2
    assert answer.endswith(b'{"said":"b"}')


def test_an_offer_to_upgrade_with_its_body_in_pieces(server: Served) -> None:
    data = post(b'"abc"', b"Connection: Upgrade", b"Upgrade: h2c") + post(b'"d"', CLOSE)
    with server.connect() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in data:
            sock.sendall(bytes([byte]))
        answer = drained(sock)
    assert answer.count(OK) == 2
    assert answer.endswith(b'{"said":"d"}')


def test_pipelined_requests_are_answered_in_order_however_many(say: tuple[Say, Served]) -> None:
    function, here = say
    with here.connect() as sock:
        sock.sendall(post(b'"wait"') + b"".join(post(b"%d" % number) for number in range(50)) + post(b'"end"', CLOSE))
        assert function.entered.acquire(timeout=5)
        function.leave.set()
        bodies = [part.split(b"\r\n\r\n", 1)[1] for part in drained(sock).split(b"HTTP/1.1 ")[1:]]
    assert bodies == [b'{"said":"wait"}', *(b'{"said":%d}' % number for number in range(50)), b'{"said":"end"}']


def test_a_refusal_waits_for_its_turn(say: tuple[Say, Served]) -> None:
    function, here = say
    with here.connect() as sock:
        sock.sendall(post(b'"wait"') + b"NONSENSE\r\n\r\n")
        assert function.entered.acquire(timeout=5)
        function.leave.set()
        assert statuses(drained(sock)) == [200, 400]


def test_who_hangs_up_while_it_waits_is_not_run(say: tuple[Say, Served]) -> None:
    function, here = say
    with here.connect() as first, here.connect() as second, here.connect() as third:
        first.sendall(post(b'"wait"', CLOSE))
        assert function.entered.acquire(timeout=5)
        second.sendall(post(b'"gone"', CLOSE))
        third.sendall(post(b'"there"', CLOSE))
        until(lambda: here.engine.workers.queued == 2, "two wait", 5)
        second.close()
        until(lambda: b'requests_total{code="499"} 1.0' in here.engine.metrics.render(), "the hang-up is seen", 5)
        function.leave.set()
        assert drained(first).endswith(b'{"said":"wait"}')
        assert drained(third).endswith(b'{"said":"there"}')
    assert function.heard == ["wait", "there"]


def test_a_slow_head_is_cut_off_and_a_slow_answer_is_not() -> None:
    function = Say()
    short = Limits(head_timeout=0.2, idle_timeout=0.2, body_timeout=0.2)
    with (
        served(function, short) as here,
        here.connect() as drip,
        here.connect() as idle,
        here.connect() as half,
        here.connect() as working,
    ):
        working.sendall(post(b'"wait"', CLOSE))
        assert function.entered.acquire(timeout=5)
        drip.sendall(b"GET / HT")
        half.sendall(post(b'"abc"')[:-2])
        for sock in (drip, idle, half):
            assert closed(sock)
        function.leave.set()
        assert drained(working).endswith(b'{"said":"wait"}')


def test_drain_closes_what_is_idle_and_says_so_on_last_answers(say: tuple[Say, Served]) -> None:
    function, here = say
    with here.connect() as idle, here.connect() as working, here.connect() as half:
        idle.sendall(post(b'"first"'))
        assert statuses(idle.recv(1000)) == [200]
        working.sendall(post(b'"wait"'))
        assert function.entered.acquire(timeout=5)
        data = post(b'"late"')
        half.sendall(data[:-2])
        assert here.server is not None
        assert here.loop is not None
        draining = asyncio.run_coroutine_threadsafe(here.server.drain(10), here.loop)
        assert closed(idle)
        assert not draining.done()
        half.sendall(data[-2:])
        late = drained(half)
        assert statuses(late) == [503]
        assert b"retry-after: 1\r\n" in late
        function.leave.set()
        answer = drained(working)
        assert answer.endswith(b'{"said":"wait"}')
        assert b"connection: close\r\n" in answer
        assert draining.result(5) is True


def test_a_drain_has_an_end(say: tuple[Say, Served]) -> None:
    function, here = say
    with here.connect() as working:
        working.sendall(post(b'"wait"'))
        assert function.entered.acquire(timeout=5)
        assert here.server is not None
        assert here.loop is not None
        assert asyncio.run_coroutine_threadsafe(here.server.drain(0.1), here.loop).result(5) is False


def closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(100) == b""
    except ConnectionResetError:
        return True


def test_who_does_not_read_is_cut_off_and_holds_nobody_up() -> None:
    with served(Say(), Limits(write_timeout=0.2)) as here, here.connect() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(post(b'{"size": 30000000}'))
        assert here.exchange(post(b'"a"', CLOSE)).endswith(b'{"said":"a"}')
        assert here.server is not None
        connections = here.server._connections
        until(lambda: len(connections) == 0, "the deaf one is cut off", 10)


def test_a_body_in_many_reads(server: Served) -> None:
    with server.connect() as sock:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.sock = sock
        connection.request("POST", "/", b'"' + b"y" * 99_000 + b'"')
        assert len(connection.getresponse().read()) == 99_000 + len('{"said":""}')


TARGETS = {
    b"/": ("/", ""),
    b"/a%20b?c=%20": ("/a b", "c=%20"),
    b"//double//": ("//double//", ""),
    b"/a?b?c#d": ("/a", "b?c"),
    b"http://host:1/x?y": ("/x", "y"),
    b"http://host": ("/", ""),
    b"*": ("*", ""),
    b"/%e6%97%a5": ("/日", ""),
}


@pytest.mark.parametrize(("target", "want"), TARGETS.items(), ids=lambda value: str(value))
def test_targets(target: bytes, want: tuple[str, str]) -> None:
    assert split_target(target) == want


@pytest.mark.parametrize("header", [("x", "a\r\nset-cookie: b"), ("x\n", "a"), ("x", "a\0")], ids=repr)
def test_no_header_breaks_out_of_its_line(header: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="line break"):
        render(Response(200, (header,), b""), date="", keep_alive=True, http10=False)
